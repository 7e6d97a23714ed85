package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/internal/cache"
)

func newCacheCommand() *cobra.Command {
	return group("cache", "Look after what is kept between builds", &cobra.Command{
		Use:   "clean",
		Short: "Remove every package, tree and finished step that is kept",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := cache.Dir()
			if err != nil {
				return err
			}
			if err := os.RemoveAll(dir); err != nil {
				return fmt.Errorf("clean cache: %w", err)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "removed", dir)
			return err
		},
	})
}
