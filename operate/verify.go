package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/lsn"
	"pgapply/operate/verify"
	"pgapply/origin"
)

// VerifyOptions say what of a subscription is compared.
type VerifyOptions struct {
	Endpoints
	// Tables choose among those of the subscription.
	Tables apply.TableFilter
	// Jobs is how many sessions each server has at most.
	Jobs int
	// RowsPerSecond bounds what is read of each end; 0 does not.
	RowsPerSecond int64
	// Limit is how many differing rows of a table are listed.
	Limit int
	// Sample, unless 1, compares one in so many rows.
	Sample int64
	// Patience is how long rows that differ may take to settle.
	Patience time.Duration
	// Repair is RepairNot, RepairPrint or RepairApply.
	Repair string
	// Confirmed says that the operator agreed to RepairApply.
	Confirmed bool
	// Progress shows how far it is; nil shows nobody.
	Progress *verify.Progress
}

// What becomes of differences.
const (
	RepairNot   = "no"
	RepairPrint = "print"
	RepairApply = "apply"
)

// DefaultVerifyOptions are what the command has without flags.
func DefaultVerifyOptions() VerifyOptions {
	return VerifyOptions{Endpoints: Endpoints{Name: apply.DefaultOptions().Name}, Jobs: 2, Limit: 1000, Sample: 1, Patience: time.Minute, Repair: RepairNot}
}

// Validate returns the error of options that cannot be.
func (o *VerifyOptions) Validate() error {
	var faults []error
	if o.Jobs < 1 {
		faults = append(faults, errors.New("--jobs must be at least 1"))
	}
	if o.RowsPerSecond < 0 || o.Limit < 0 {
		faults = append(faults, errors.New("--max-rows-per-second and --limit must not be negative"))
	}
	if o.Sample < 1 || o.Sample&(o.Sample-1) != 0 {
		faults = append(faults, errors.New("--sample must be a power of two: 16 compares one in 16 rows"))
	}
	if !slices.Contains([]string{RepairNot, RepairPrint, RepairApply}, o.Repair) {
		faults = append(faults, fmt.Errorf("--repair %q is not one of print, apply", o.Repair))
	}
	if len(faults) == 0 {
		return nil
	}
	return &apply.Error{Class: apply.Configuration, Err: errors.Join(faults...), Hint: "`pgapply verify --help` lists what it takes"}
}

// DifferenceError says that publisher and target differ.
type DifferenceError struct{ Report *Verification }

func (e *DifferenceError) Error() string {
	return fmt.Sprintf("publisher and target differ: %s", e.Report.difference())
}

// Verify compares the rows of publisher and target while both work, and while a runner
// applies: what is on its way is waited for. It compares the tables that are ready. It
// changes nothing, unless the options say RepairApply.
//
// Differences are in the report, and its Err tells of them.
func Verify(ctx context.Context, options VerifyOptions) (*Verification, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	target, store, err := options.openState(ctx)
	if err != nil {
		return nil, err
	}
	defer closeTarget(target.conn)
	v := &verifying{options: &options, target: target, store: store}
	if err := v.look(ctx); err != nil {
		return nil, err
	}
	return v.run(ctx)
}

// verifying is one run of Verify.
type verifying struct {
	options        *VerifyOptions
	target         *targetSession
	store          *state.Store
	subscription   *state.Subscription
	tables         []verify.Table
	tablesNotReady []TableView
}

// look finds the tables, and refuses what cannot be compared.
func (v *verifying) look(ctx context.Context) (err error) {
	if v.subscription, err = v.store.Subscription(ctx); err != nil {
		return apply.TargetError(err)
	}
	if v.subscription == nil {
		return v.target.unknown(ctx, v.store)
	}
	if err := v.options.isPublisher(ctx, v.subscription); err != nil {
		return err
	}
	tables, err := v.store.Tables(ctx)
	if err != nil {
		return apply.TargetError(err)
	}
	var unknown []string
	for _, pattern := range v.options.Tables.Include {
		only := apply.TableFilter{Include: []string{pattern}}
		if !slices.ContainsFunc(tables, func(table state.Table) bool { return only.Has(table.Schema, table.Name) }) {
			unknown = append(unknown, pattern)
		}
	}
	chosen := tables[:0]
	for _, table := range tables {
		if v.options.Tables.Has(table.Schema, table.Name) {
			chosen = append(chosen, table)
		}
	}
	v.tablesNotReady = tablesNotReady(chosen, v.options.Name)
	for _, table := range chosen {
		if table.State == state.TableReady {
			v.tables = append(v.tables, verify.Table{Schema: table.Schema, Name: table.Name})
		}
	}
	switch {
	case len(tables) > 0 && len(unknown) > 0:
		return refused("correct --table: `pgapply status --tables` lists them", "subscription %q has no such table: %s", v.options.Name, quoted(unknown))
	case len(v.tables) > 0:
		return nil
	case len(chosen) > 0:
		return refused("wait until they are: `pgapply status --tables` lists them", "%s of subscription %q to compare, and none of them is ready",
			counted(int64(len(chosen)), "table"), v.options.Name)
	case len(tables) > 0:
		return refused("correct --exclude-table; `pgapply verify` without it compares all of them", "--exclude-table leaves out all tables of subscription %q", v.options.Name)
	}
	return refused("`pgapply refresh` takes published tables in", "subscription %q has no tables", v.options.Name)
}

// isPublisher refuses a source that is not the subscription's.
func (e Endpoints) isPublisher(ctx context.Context, subscription *state.Subscription) error {
	conn, identity, err := e.openSource(ctx)
	if err != nil {
		return err
	}
	defer closeSource(conn)
	if identity.SystemID != subscription.Source.SystemID || identity.Database != subscription.Source.Database {
		return refused("give the publisher's --source", "--source is database %q of system %s, and subscription %q replicates database %q of system %s",
			identity.Database, identity.SystemID, e.Name, subscription.Source.Database, subscription.Source.SystemID)
	}
	missing, err := conn.MissingPublications(ctx, subscription.Publications)
	if err != nil {
		return apply.SourceError(err)
	}
	if len(missing) > 0 {
		return refused("create them again, or start `pgapply run` with others", "the publisher's database %q has no publication %s", identity.Database, quoted(missing))
	}
	return nil
}

func (v *verifying) run(ctx context.Context) (*Verification, error) {
	o := v.options
	options := verify.Options{
		Source: verify.End{URI: o.Source, Passfile: o.SourcePassfile}, Target: verify.End{URI: o.Target, Passfile: o.TargetPassfile},
		ApplicationName: "pgapply:" + o.Name + ":verify",
		Publications:    v.subscription.Publications, Tables: v.tables,
		Jobs: o.Jobs, RowsPerSecond: o.RowsPerSecond, Limit: o.Limit, Sample: o.Sample, Patience: o.Patience,
		Follow: &follower{store: v.store}, Slot: v.subscription.SlotName, Progress: o.Progress,
	}
	switch o.Repair {
	case RepairPrint:
		options.Repair = func(ctx context.Context, d *verify.Differences) error { return d.Print(ctx) }
	case RepairApply:
		repairer, err := v.repairer(ctx, &options)
		if err != nil {
			return nil, err
		}
		defer repairer.Close()
		var one sync.Mutex // tables come side by side
		options.Repair = func(ctx context.Context, d *verify.Differences) error {
			one.Lock()
			defer one.Unlock()
			return repairer.Apply(ctx, d)
		}
	}
	report, err := verify.Run(ctx, options)
	if err != nil {
		return nil, verifyError(ctx, err)
	}
	return &Verification{Subscription: o.Name, Report: report, TablesNotReady: v.tablesNotReady, Applied: o.Repair == RepairApply}, nil
}

// repairer is refused where nobody applies, or nobody agreed.
func (v *verifying) repairer(ctx context.Context, options *verify.Options) (*verify.Repairer, error) {
	if !v.options.Confirmed {
		return nil, refused("repeat with --yes, or look first at what `pgapply verify --repair` prints", "the repair of subscription %q is not confirmed", v.options.Name)
	}
	if err := v.target.writable(); err != nil {
		return nil, err
	}
	_, follows, err := options.Follow.Applied(ctx)
	if err != nil {
		return nil, verifyError(ctx, err)
	}
	if !follows {
		return nil, verifyError(ctx, verify.ErrAlone)
	}
	name := ""
	if v.subscription.ProgressIn == state.InOrigins {
		// That of a copying session: the runner knows it as the subscription's own.
		name = origin.CopyName(v.options.Name, v.target.server.DatabaseOID, 0)
		if err := v.store.MakeOrigin(ctx, state.Origin{Name: name, Worker: -1}); err != nil {
			return nil, apply.TargetError(err)
		}
	}
	repairer, err := verify.NewRepairer(ctx, options, name)
	if err != nil {
		return nil, verifyError(ctx, err)
	}
	return repairer, nil
}

func verifyError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return &apply.Error{Class: apply.Other, Err: fmt.Errorf("verify was stopped: %w", context.Cause(ctx))}
	}
	if errors.Is(err, verify.ErrAlone) {
		return refused("start `pgapply run`, and repeat this", "%w", err)
	}
	end, ok := errors.AsType[*verify.EndError](err)
	switch {
	case !ok:
		return apply.TargetError(err)
	case end.Target:
		return apply.TargetError(err)
	}
	return apply.SourceError(err)
}

// follower reads from the state how far the target is. It is safe for concurrent use.
type follower struct {
	mu    sync.Mutex
	store *state.Store
}

// Applied takes the best of what is known: the position that each transaction leaves on
// the target, and what the runner says where nothing published has happened since.
func (f *follower) Applied(ctx context.Context) (position lsn.LSN, follows bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	holder, err := f.store.LockHolder(ctx)
	if err != nil || holder == nil {
		return 0, false, targetErrorOrNil(err)
	}
	if position, err = f.store.Progress(ctx); err != nil {
		return 0, false, apply.TargetError(err)
	}
	runner, err := f.store.Runner(ctx)
	if err != nil {
		return 0, false, apply.TargetError(err)
	}
	if runner != nil && runner.Status != nil {
		position = max(position, lsn.LSN(runner.Status.Applied))
	}
	return position, true, nil
}
