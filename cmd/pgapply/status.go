package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"pgapply/apply"
	"pgapply/operate"
)

func newStatus() *cobra.Command {
	ends := defaultEndpoints()
	asJSON, tables, all, ready, readyLag := false, false, false, false, time.Minute
	var watch interval
	v := newVerb(&cobra.Command{
		Use:   "status",
		Short: "Show positions, lag, tables and the runner of a subscription",
		Long: `Reads what the runner has recorded on the target, and what the publisher says
about the slot where --source is given. It works while no runner lives, too, and
then says so. What needs attention comes last.

The runner records what it is doing when something in it changes, at most once a
second, and every 10 s while nothing does, as in one long transaction. It does so on
the session that also records acknowledgements, and waits for its turn there: what is
shown may be some seconds old. The heartbeat says how old.

The lag is what a runner that streams has received and not applied, and how long ago
the oldest of it has committed: an idle publisher is never ahead. While none streams it
is taken from the slot, or unknown without --source.

With --ready it says nothing where all is well, and else why not and exits 1: a runner
must stream, every table take part, and the lag not be above --ready-lag.`,
		Example: `  pgapply status --target 'postgres://bank@new.example/bank'
  pgapply status --watch
  pgapply status --all --ready --ready-lag 5m   # of a probe
  pgapply status --json | jq .problems`,
	}, func(cmd *cobra.Command) error {
		if err := targetGiven(cmd, ends.Target); err != nil {
			return err
		}
		if all && tables {
			return usageError(cmd, "--all and --tables do not go together: --tables is for one subscription")
		}
		if ready && watch > 0 {
			return usageError(cmd, "--ready and --watch do not go together: --ready looks once")
		}
		if all {
			read := func(ctx context.Context) (*operate.Overview, error) { return operate.ReadOverview(ctx, ends) }
			return show(cmd, time.Duration(watch), asJSON, read, (*operate.Overview).Text, func(o *operate.Overview) error {
				return notReady(ready, o.WhyNotReady(readyLag))
			})
		}
		text := (*operate.Report).Text
		read := func(ctx context.Context) (*operate.Report, error) { return operate.ReadStatus(ctx, ends) }
		if tables {
			text = (*operate.Report).TablesText
			read = func(ctx context.Context) (*operate.Report, error) {
				report, err := operate.ReadStatus(ctx, ends)
				if err == nil {
					report.ListTables()
				}
				return report, err
			}
		}
		if ready {
			ends.Source = "" // a probe is about the target, and quick
		}
		return show(cmd, time.Duration(watch), asJSON, read, text, func(r *operate.Report) error {
			return notReady(ready, r.WhyNotReady(readyLag, true))
		})
	})
	v.endpoints(&ends)
	v.group("Output", func(flags *pflag.FlagSet) {
		flags.BoolVar(&tables, "tables", false, "list the tables, with how far their copy is and what keeps them from being ready")
		flags.BoolVar(&all, "all", false, "show all subscriptions that the target's database knows, a line for each; --name and --source do not matter")
		flags.Var(&watch, "watch", "show it again every `TIME`, 2s unless said, until Ctrl-C")
		flags.Lookup("watch").NoOptDefVal = "2s"
		flags.BoolVar(&ready, "ready", false, "say nothing but why it is not ready, and exit 1 then; for probes")
		flags.DurationVar(&readyLag, "ready-lag", readyLag, "longest `TIME` behind the publisher at which --ready says so; 0 for any")
		jsonFlag(flags, &asJSON)
	})
	return v.Command
}

// show prints what read returns, once or again and again. The verdict of judge stands
// instead of the print, unless it is errShow.
func show[T any](cmd *cobra.Command, again time.Duration, asJSON bool, read func(context.Context) (T, error), text func(T) string, judge func(T) error) error {
	out := cmd.OutOrStdout()
	if again == 0 {
		result, err := read(cmd.Context())
		if err != nil {
			return err
		}
		if err := judge(result); !errors.Is(err, errShow) {
			return err
		}
		if asJSON {
			return printJSON(out, result)
		}
		say(out, text(result))
		return nil
	}
	draw := pager(out, asJSON)
	return operate.Watch(cmd.Context(), again, read, func(result T, err error) {
		var page strings.Builder
		switch {
		case err != nil:
			fmt.Fprintf(&page, "%s\n", time.Now().Format(time.TimeOnly))
			report(&page, err, subscription(cmd))
		case asJSON:
			line, _ := json.Marshal(result) // nothing in it can fail
			page.Write(append(line, '\n'))
		default:
			fmt.Fprintf(&page, "%s\n%s", time.Now().Format(time.TimeOnly), text(result))
		}
		draw(page.String())
	})
}

// pager returns what shows one page after the other: over the one before on a terminal,
// and below it elsewhere, where lines of JSON stand by themselves.
func pager(out io.Writer, asJSON bool) func(page string) {
	file, ok := out.(*os.File)
	switch {
	case asJSON:
		return func(page string) { say(out, page) }
	case ok && onTerminal(file):
		return (&frames{file: file}).draw
	}
	return func(page string) { say(out, page+"\n") }
}

// errShow says that a result is to be printed.
var errShow = errors.New("show it")

// notReady is the verdict of --ready, where that was asked for.
func notReady(asked bool, reasons []string) error {
	switch {
	case !asked:
		return errShow
	case len(reasons) == 0:
		return nil
	}
	return &apply.Error{Class: apply.Other, Err: fmt.Errorf("not ready: %s", strings.Join(reasons, "; ")), Hint: "see `pgapply status`"}
}

// interval is the flag for how often something is shown; 0 for once.
type interval time.Duration

func (i *interval) Type() string { return "time" }

func (i *interval) String() string {
	if i == nil || *i == 0 {
		return ""
	}
	return time.Duration(*i).String()
}

// Set reads a time that leaves the servers alone in between.
func (i *interval) Set(text string) error {
	const least = 100 * time.Millisecond
	span, err := time.ParseDuration(text)
	if err != nil || span < least {
		return fmt.Errorf("%q is not a time such as 2s, of at least %s", text, least)
	}
	*i = interval(span)
	return nil
}

func jsonFlag(flags *pflag.FlagSet, asJSON *bool) {
	flags.BoolVar(asJSON, "json", false, "print JSON, whose names stay stable")
}

// say writes text for a reader who may have gone away meanwhile, which is no
// failure of the command.
func say(out io.Writer, text string) { _, _ = io.WriteString(out, text) }

func printJSON(out io.Writer, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	say(out, string(text)+"\n")
	return nil
}
