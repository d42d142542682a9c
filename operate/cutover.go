package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/lsn"
	"pgapply/internal/source"
	"pgapply/operate/verify"
)

// CutoverOptions say how applications move from the publisher to the target.
type CutoverOptions struct {
	Endpoints
	// DryRun only says whether it is safe now.
	DryRun bool
	// MaxLag is how far the target may be behind when writes are stopped, in bytes of WAL.
	MaxLag int64
	// Timeout bounds each wait: for a small lag, for writes to end, for the last change.
	Timeout time.Duration
	// SetReadOnly makes the publisher's database read-only and ends its sessions; without
	// it whoever confirms has stopped the writes.
	SetReadOnly bool
	// Sequences is SequencesAll, SequencesPublished or SequencesNone.
	Sequences string
	// Verify is VerifyFull, VerifySample or VerifyNone.
	Verify string
	Jobs   int
	// Reverse prepares the way back: a publication and a slot on the target, by the name
	// ReverseName.
	Reverse     bool
	ReverseName string
	// Confirm asks the operator; nil agrees to nothing.
	Confirm func(Question) bool
	// Tell hears of each step as it is done; nil does not.
	Tell func(Step)
	// Progress shows how far the comparison is; nil shows nobody.
	Progress *verify.Progress
}

// Which sequences are copied, and how many rows compared.
const (
	SequencesAll       = "all"
	SequencesPublished = "published"
	VerifyFull         = "full"
	VerifySample       = "sample"
	Nothing            = "none"
)

// sampled: one row in so many is compared with VerifySample.
const sampled = 16

// Question is what an operator is asked before something happens.
type Question struct {
	// Text says what is about to happen, or to be done; Word is what to type for yes.
	Text, Word string
}

// DefaultCutoverOptions are what the command has without flags.
func DefaultCutoverOptions() CutoverOptions {
	return CutoverOptions{
		Endpoints: Endpoints{Name: apply.DefaultOptions().Name}, MaxLag: 16 << 20, Timeout: 5 * time.Minute,
		Sequences: SequencesAll, Verify: VerifySample, Jobs: 2,
	}
}

// Validate returns the error of options that cannot be, and fills ReverseName.
func (o *CutoverOptions) Validate() error {
	var faults []error
	if o.MaxLag < 0 || o.Timeout <= 0 {
		faults = append(faults, errors.New("--max-lag must not be negative, and --timeout must be above 0"))
	}
	if o.Jobs < 1 {
		faults = append(faults, errors.New("--jobs must be at least 1"))
	}
	if !slices.Contains([]string{SequencesAll, SequencesPublished, Nothing}, o.Sequences) {
		faults = append(faults, fmt.Errorf("--sequences %q is not one of all, published, none", o.Sequences))
	}
	if !slices.Contains([]string{VerifyFull, VerifySample, Nothing}, o.Verify) {
		faults = append(faults, fmt.Errorf("--verify %q is not one of full, sample, none", o.Verify))
	}
	if o.ReverseName == "" {
		o.ReverseName = o.Name + "_reverse"
	}
	if o.Reverse && !validName(o.ReverseName) {
		faults = append(faults, fmt.Errorf("--reverse-name %q is not of a-z, 0-9 and _, up to 63 of them", o.ReverseName))
	}
	if len(faults) == 0 {
		return nil
	}
	return &apply.Error{Class: apply.Configuration, Err: errors.Join(faults...), Hint: "`pgapply cutover --help` lists what it takes"}
}

func validName(name string) bool {
	const longest = 63
	return name != "" && len(name) <= longest && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == ""
}

// Cutover moves the traffic from the publisher to the target:
//
//	check ──► confirm ──► lag small ──► writes stopped ──► last change applied ──►
//	sequences ──► compared ──► way back prepared ──► subscription paused
//
// The pause is the end and the mark of it: from then on nothing of the publisher is
// applied, and another call finds everything done. Until then each step can be repeated,
// and is by another call: nothing is remembered but what the servers show.
//
// The report says what was done also beside an error, and how to go back.
func Cutover(ctx context.Context, options CutoverOptions) (*CutoverReport, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	target, store, err := options.openState(ctx)
	if err != nil {
		return nil, err
	}
	defer closeTarget(target.conn)
	if err := target.writable(); err != nil {
		return nil, err
	}
	subscription, err := store.Subscription(ctx)
	if err != nil {
		return nil, apply.TargetError(err)
	}
	if subscription == nil {
		return nil, target.unknown(ctx, store)
	}
	if err := options.isPublisher(ctx, subscription); err != nil {
		return nil, err
	}
	publisher, identity, err := options.openSource(ctx)
	if err != nil {
		return nil, err
	}
	defer closeSource(publisher)
	c := &cutover{
		options: &options, target: target, store: store, subscription: subscription, publisher: publisher, database: identity.Database,
		report: &CutoverReport{Subscription: options.Name, DryRun: options.DryRun, Findings: []Finding{}, Steps: []Step{}, Next: []string{}},
	}
	return c.report, c.run(ctx)
}

// cutover is one run of Cutover.
type cutover struct {
	options      *CutoverOptions
	target       *targetSession
	store        *state.Store
	subscription *state.Subscription
	publisher    *source.Conn
	database     string // of the publisher
	report       *CutoverReport
	// stopped is when no write began any more; final is where the last one ends, and
	// progress where the last transaction ends that was applied.
	stopped         time.Time
	final, progress lsn.LSN
}

func (c *cutover) run(ctx context.Context) error {
	if sub := c.subscription; sub.CutOver() {
		c.report.Done = true
		c.step("done", "this subscription was %s at %s: nothing is left to do", sub.PauseReason, moment(*sub.PausedAt))
		c.goOn()
		return nil
	}
	if err := c.check(ctx); err != nil || c.options.DryRun {
		return err
	}
	for _, step := range []func(context.Context) error{
		c.confirm, c.waitForLag, c.publishBack, c.stopWrites, c.drain, c.copySequences, c.compare, c.openBack, c.finish,
	} {
		if err := step(ctx); err != nil {
			c.explain()
			return c.broken(ctx, err)
		}
	}
	return nil
}

// check looks whether it is safe, and refuses where it is not.
func (c *cutover) check(ctx context.Context) error {
	findings, err := c.findings(ctx)
	if err != nil {
		return err
	}
	nameFindings(findings, c.report.Subscription)
	c.report.Findings = findings
	var reasons []string
	for _, finding := range findings {
		if finding.Level == Failure {
			reasons = append(reasons, finding.Subject+": "+finding.Text)
		}
	}
	c.report.Safe, c.report.Reasons = len(reasons) == 0, reasons
	if !c.report.Safe {
		return refused("each error names its remedy; look again with --dry-run", "a cutover of subscription %q is not safe now: %s", c.options.Name, counted(int64(len(reasons)), "error"))
	}
	if !c.options.DryRun {
		c.step("checked", "%d findings, no error", len(findings))
	}
	return nil
}

func (c *cutover) confirm(context.Context) error {
	how := "waits until you say that writes have stopped"
	if c.options.SetReadOnly {
		how = fmt.Sprintf("makes database %q of the publisher read-only and ends its sessions", c.database)
	}
	question := Question{
		Text: fmt.Sprintf("This waits until the lag is below %s, then %s, applies what is left, and ends the replication of subscription %q. Applications must write to the target from then on.",
			size(c.options.MaxLag), how, c.options.Name),
		Word: c.options.Name,
	}
	if c.options.Confirm == nil || !c.options.Confirm(question) {
		return refused("repeat with --yes, or look first with --dry-run", "the cutover of subscription %q is not confirmed", c.options.Name)
	}
	return nil
}

// waitForLag waits until the target is near, so that writes rest for a short time only.
func (c *cutover) waitForLag(ctx context.Context) error {
	deadline := time.Now().Add(c.options.Timeout)
	for {
		report, err := ReadStatus(ctx, c.options.Endpoints)
		if err != nil {
			return err
		}
		behind := c.behind(report)
		switch {
		case behind >= 0 && behind <= c.options.MaxLag:
			c.step("lag", "the target is %s behind", size(behind))
			return nil
		case time.Now().After(deadline):
			return refused("wait until it is small, raise --max-lag, or see `pgapply status`", "the target is still %s behind after %s, more than --max-lag %s", size(behind), c.options.Timeout, size(c.options.MaxLag))
		}
		if err := verify.Pause(ctx, lookAgain); err != nil {
			return err
		}
	}
}

// behind is the WAL between the publisher's end and what is applied; -1 where it is not known.
func (c *cutover) behind(report *Report) int64 {
	if report.Publisher == nil || !report.Publisher.Reachable || report.Publisher.Slot == nil {
		return -1
	}
	applied := max(report.Publisher.Slot.ConfirmedFlush, report.Slot.Acknowledged)
	if report.Status != nil {
		applied = max(applied, report.Status.Applied)
	}
	return behind(applied, report.Publisher.Current)
}

// drain waits until the last change is applied.
func (c *cutover) drain(ctx context.Context) error {
	position, behind, err := verify.WaitApplied(ctx, verify.Options{
		Source:          verify.End{URI: c.options.Source, Passfile: c.options.SourcePassfile},
		ApplicationName: "pgapply:" + c.options.Name + ":cutover", Patience: c.options.Timeout,
		Follow: &follower{store: c.store}, Slot: c.subscription.SlotName,
	})
	if err != nil {
		return verifyError(ctx, err)
	}
	if behind != "" {
		return refused("see `pgapply status`, then repeat this", "not everything is applied: %s", behind)
	}
	if c.progress, err = c.store.Progress(ctx); err != nil {
		return apply.TargetError(err)
	}
	c.final = position
	c.report.FinalLSN = state.Position(position)
	c.step("drained", "everything up to %s is applied", position)
	return nil
}

func (c *cutover) copySequences(ctx context.Context) error {
	if c.options.Sequences == Nothing {
		return nil
	}
	report, err := Sequences(ctx, c.sequences(false))
	if err != nil {
		return err
	}
	c.report.Sequences = report
	if err := report.Err(); err != nil {
		return err
	}
	c.step("sequences", "%d set, %d kept", report.Set, report.Kept)
	return nil
}

func (c *cutover) sequences(dry bool) SequencesOptions {
	return SequencesOptions{Endpoints: c.options.Endpoints, All: c.options.Sequences == SequencesAll, DryRun: dry}
}

func (c *cutover) compare(ctx context.Context) error {
	if c.options.Verify == Nothing {
		return nil
	}
	options := DefaultVerifyOptions()
	options.Endpoints, options.Jobs, options.Progress = c.options.Endpoints, c.options.Jobs, c.options.Progress
	how := "all rows"
	if c.options.Verify == VerifySample {
		options.Sample, how = sampled, fmt.Sprintf("one row in %d", sampled)
	}
	verification, err := Verify(ctx, options)
	if err != nil {
		return err
	}
	c.report.Verification = verification
	if err := verification.Err(); err != nil {
		return err
	}
	c.step("verified", "%s equal, %s compared (%s)", are(int64(len(verification.Tables)), "table"), counted(verification.Rows, "row"), how)
	return nil
}

// finish proves that nothing was written since writes were said to have stopped, and
// ends the replication.
func (c *cutover) finish(ctx context.Context) error {
	progress, err := c.store.Progress(ctx)
	if err != nil {
		return apply.TargetError(err)
	}
	if progress != c.progress {
		return refused("find and stop who writes, or use --set-read-only, then repeat this", "writes went on on the publisher: a transaction that ended at %s was applied after everything up to %s was", progress, c.final)
	}
	switching, err := Pause(ctx, c.options.Endpoints, fmt.Sprintf("%s%s of the publisher", state.CutOverAt, c.final))
	if err != nil {
		return err
	}
	if switching.Report.Runner.Alive && !switching.Followed {
		return refused("see `pgapply status`; repeat this once it is paused", "the runner did not stop applying yet")
	}
	c.report.Done = true
	c.report.DowntimeSeconds = time.Since(c.stopped).Seconds()
	c.step("done", "subscription %q is paused; applications may write to the target now", c.options.Name)
	c.goOn()
	return nil
}
