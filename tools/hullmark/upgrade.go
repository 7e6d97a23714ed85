package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hullmark/hullmark"
	"github.com/hullmark/hullmark/cluster"
	"github.com/hullmark/hullmark/cluster/operate"
	"github.com/hullmark/hullmark/upgrade"
)

func newUpgradeCommand() *cobra.Command {
	return group("upgrade", "Move a cluster to another release, or restart it, node by node",
		newUpgradePlanCommand(), newUpgradeApplyCommand(), newUpgradeStatusCommand(), newUpgradeAttendCommand(),
		upgradeEdit("pause", "Begin with no further node", "nodes that were begun with go on to their ends; no further one is begun with",
			func(a *operate.API, cmd *cobra.Command) error { return a.PauseUpgrade(cmd.Context(), true) }),
		upgradeEdit("resume", "Go on with a paused upgrade", "the upgrade goes on",
			func(a *operate.API, cmd *cobra.Command) error { return a.PauseUpgrade(cmd.Context(), false) }),
		upgradeEdit("abort", "End the upgrade; nodes keep what they have by then", "the upgrade ends once nodes that are away are back; none stays cordoned by it",
			func(a *operate.API, cmd *cobra.Command) error { return a.AbortUpgrade(cmd.Context()) }),
	)
}

// upgradeOptions are the flags of the verbs that say what is to happen.
type upgradeOptions struct {
	apiOptions
	spec               upgrade.Spec
	restart            string
	pools              []string
	stage, drain, away time.Duration
	output             string
	follow             bool
}

func (o *upgradeOptions) addFlags(cmd *cobra.Command) {
	o.apiOptions.addFlags(cmd)
	defaults := upgrade.DefaultTimeouts()
	f := cmd.Flags()
	f.StringArrayVar(&o.spec.Sources, "from", nil, "`ADDRESS` where the release was published, as nodes reach it; may be given several times")
	f.StringVar(&o.restart, "restart", "", "restart the nodes as they are, in the place of a release, for this `REASON`: certificates, a policy")
	f.StringArrayVar(&o.spec.Except, "except", nil, "leave the node `NAME` as it is; may be given several times")
	f.IntVar(&o.spec.Staging, "staging", 4, "`HOW-MANY` nodes write the release at a time")
	f.IntVar(&o.spec.Unavailable, "unavailable", 1, "`HOW-MANY` workers of a pool may be away at a time")
	f.StringArrayVar(&o.pools, "pool", nil, "as --unavailable for one pool, as `NAME=NUMBER`; may be given several times")
	f.BoolVar(&o.spec.Drain.Force, "force", false, "evict pods that no controller makes anew: they are lost")
	f.BoolVar(&o.spec.Drain.DeleteEmptyDir, "delete-emptydir-data", false, "evict pods whose data in an emptyDir is lost")
	f.BoolVar(&o.spec.Drain.Skip, "skip", false, "leave a node out that cannot be drained; else the upgrade stops there")
	f.DurationVar(&o.stage, "stage-timeout", time.Duration(defaults.Stage), "how long a node may take to write the release")
	f.DurationVar(&o.drain, "drain-timeout", time.Duration(defaults.Drain), "how long a drain may take")
	f.DurationVar(&o.away, "away-timeout", time.Duration(defaults.Away), "how long a node may be away")
}

// read completes the spec.
func (o *upgradeOptions) read(files []string) (upgrade.Spec, error) {
	if (o.restart != "") == (len(files) > 0) {
		return upgrade.Spec{}, withCode(exitUsage, errors.New("name either the documents of a release, or --restart with a reason"))
	}
	documents, err := readDocuments(files)
	if err != nil {
		return upgrade.Spec{}, err
	}
	if len(files) > 0 {
		if err := hullmark.CheckSources(o.spec.Sources); err != nil {
			return upgrade.Spec{}, withCode(exitUsage, fmt.Errorf("--from: %w", err))
		}
	}
	s := o.spec
	s.Reason, s.Pools = o.restart, map[string]int{}
	s.Timeouts = upgrade.Timeouts{Stage: upgrade.Duration(o.stage), Drain: upgrade.Duration(o.drain), Away: upgrade.Duration(o.away)}
	for _, pool := range o.pools {
		name, number, _ := strings.Cut(pool, "=")
		n, err := strconv.Atoi(number)
		if err != nil {
			return s, withCode(exitUsage, fmt.Errorf("--pool %q: want NAME=NUMBER", pool))
		}
		s.Pools[name] = n
	}
	return operate.NewUpgrade(s, documents)
}

const upgradeOrder = `Each node writes the release into its other slot while it works. Then control planes go first, one at a time and only while all others are ready, then workers, a pool
after the other. A node is cordoned and drained as its PodDisruptionBudgets allow, told to try the release, and takes pods again once it is back with it for
good. At the first node that falls back, or cannot be drained, the upgrade stops. A control plane that no other could let in again, because it is the only one or one of
two, waits for its operator (upgrade attend).`

func newUpgradePlanCommand() *cobra.Command {
	var o upgradeOptions
	cmd := &cobra.Command{
		Use:   "plan [DOCUMENT...]",
		Short: "Say what an upgrade would do, in which order, and what stands against it",
		Long: `Say what an upgrade would do, in which order, how long each node was away the last time, and what stands against it. The documents are of one release, one for
each kind of machine in the cluster. Nothing is changed.

` + upgradeOrder + `

Exit code 4 if something stands against it, 5 if the API server is not reached.`,
		Example: "  hullmark upgrade plan next.json --from https://releases.example.com/next --cluster prod.cluster --server 192.0.2.7:6443",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput("upgrade plan", o.output); err != nil {
				return err
			}
			spec, err := o.read(args)
			if err != nil {
				return fmt.Errorf("upgrade plan: %w", err)
			}
			return o.do(cmd, "upgrade plan", func(api *operate.API, _ *cluster.File) error {
				plan, err := api.PlanUpgrade(cmd.Context(), spec)
				if err != nil {
					return err
				}
				if err := o.show(cmd.OutOrStdout(), plan); err != nil || len(plan.Against) == 0 {
					return err
				}
				return withCode(exitDenied, fmt.Errorf("%d things stand against it", len(plan.Against)))
			})
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "`FORMAT` of the output: text or json")
	return cmd
}

func (o *upgradeOptions) show(out io.Writer, plan upgrade.Plan) error {
	if o.output == "json" {
		return writeJSON(out, plan)
	}
	return writePlan(out, plan)
}

func newUpgradeApplyCommand() *cobra.Command {
	var o upgradeOptions
	cmd := &cobra.Command{
		Use:   "apply [DOCUMENT...]",
		Short: "Let the cluster upgrade itself",
		Long: `Let the cluster upgrade itself, unless something stands against it. What was asked for is an object of the cluster: the engine on its control planes carries it
out, whatever becomes of this command, of a control plane, or of the engine. There is one upgrade at a time.

` + upgradeOrder + `

Exit code 4 if something stands against it, 5 if the API server is not reached, 1 if the upgrade that is followed fails.`,
		Example: "  hullmark upgrade apply next.json --from https://releases.example.com/next --follow --cluster prod.cluster --server 192.0.2.7:6443",
		RunE: func(cmd *cobra.Command, args []string) error {
			spec, err := o.read(args)
			if err != nil {
				return fmt.Errorf("upgrade apply: %w", err)
			}
			return o.do(cmd, "upgrade apply", func(api *operate.API, _ *cluster.File) error {
				plan, err := api.ApplyUpgrade(cmd.Context(), spec)
				if plan.Steps != nil {
					err = errors.Join(writePlan(cmd.OutOrStdout(), plan), err)
				}
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "upgrade %s is begun by the cluster; hullmark upgrade status shows how far it is\n", spec.ID)
				if !o.follow {
					return nil
				}
				return followUpgrade(cmd, api)
			})
		},
	}
	o.addFlags(cmd)
	cmd.Flags().BoolVar(&o.follow, "follow", false, "tell of each change, with its time, until the upgrade is over")
	return cmd
}

// followUpgrade tells of changes; a failed upgrade is an error.
func followUpgrade(cmd *cobra.Command, api *operate.API) error {
	last, err := api.FollowUpgrade(cmd.Context(), func(c upgrade.Change) { writeChange(cmd.OutOrStdout(), c, time.Now()) })
	if cmd.Context().Err() != nil {
		return errors.New("interrupted; the upgrade goes on by itself (hullmark upgrade status)")
	}
	if err == nil && last.Phase != upgrade.Done {
		err = withCode(exitFailed, fmt.Errorf("the upgrade is %s", last.Phase))
	}
	return err
}

// upgradeEdit makes a verb that changes what is wanted of the upgrade under way.
func upgradeEdit(verb, short, said string, edit func(*operate.API, *cobra.Command) error) *cobra.Command {
	var o apiOptions
	cmd := &cobra.Command{
		Use: verb, Short: short, Long: short + ".\n\nExit code 4 if no upgrade is under way, 5 if the API server is not reached.",
		Example: "  hullmark upgrade " + verb + " --cluster prod.cluster --server 192.0.2.7:6443",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.do(cmd, "upgrade "+verb, func(api *operate.API, _ *cluster.File) error {
				if err := edit(api, cmd); err != nil {
					return err
				}
				_, err := fmt.Fprintln(cmd.OutOrStdout(), said)
				return err
			})
		},
	}
	o.addFlags(cmd)
	return cmd
}
