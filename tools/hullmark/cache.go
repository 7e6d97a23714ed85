package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark/internal/cache"
)

func newCacheCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "cache", Short: "Look after what is kept between builds", Args: cobra.NoArgs}
	cmd.AddCommand(&cobra.Command{
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
	return cmd
}
