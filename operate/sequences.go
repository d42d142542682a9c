package operate

import (
	"context"
	"errors"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/source"
)

// SequencesOptions say which sequences are copied, and how.
type SequencesOptions struct {
	Endpoints
	// Publications whose tables' sequences are copied; empty means those that the
	// subscription has recorded. They do not count with All.
	Publications []string
	// All copies every sequence of the publisher's database, but for those that an
	// extension keeps to itself and those of schema pgapply. No subscription is needed.
	All bool
	// Margin is how many increments the target is moved beyond the publisher.
	Margin int64
	// AllowBackwards also moves sequences that are ahead on the target.
	AllowBackwards bool
	// DryRun changes nothing, and the report says what would have been done.
	DryRun bool
}

// Validate returns the error of options that cannot be.
func (o *SequencesOptions) Validate() error {
	if o.Margin < 0 {
		return &apply.Error{Class: apply.Configuration, Err: errors.New("--margin must not be negative"), Hint: "--allow-backwards moves sequences back to the publisher's"}
	}
	if o.All && len(o.Publications) > 0 {
		return &apply.Error{Class: apply.Configuration, Err: errors.New("--all and --publication exclude each other"), Hint: "give one of them"}
	}
	return nil
}

// Sequences copies the positions of sequences from the publisher to the sequences of
// the same name on the target, or of the same column where the name differs there. It
// needs no slot, and does not care whether a runner lives: replication never moves
// sequences, and positions are those of one moment, so that the last call before
// applications move to the target counts.
//
// A sequence never goes backwards, in the direction in which it counts, unless the
// options allow it, also while applications take values from it meanwhile: see
// [positioner]. Sequences that cannot be set do not keep the others from being set;
// the report names them, and its Err is the refusal. The error is for what concerns all.
func Sequences(ctx context.Context, options SequencesOptions) (*SequenceReport, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	target, err := options.openTarget(ctx)
	if err != nil {
		return nil, err
	}
	defer closeTarget(target.conn)
	if err := target.writable(); err != nil {
		return nil, err
	}
	recorded, err := options.recorded(ctx, target)
	if err != nil {
		return nil, err
	}
	list, err := options.readSource(ctx, target, recorded)
	if err != nil {
		return nil, err
	}
	p := positioner{conn: target.conn, role: target.server.Role, options: &options}
	local, err := p.list(ctx)
	if err != nil {
		return nil, apply.TargetError(err)
	}
	pairs := pairSequences(list, local)
	if err := p.read(ctx, pairs); err != nil {
		return nil, apply.TargetError(err)
	}
	report := &SequenceReport{DryRun: options.DryRun, Sequences: []SequenceResult{}}
	for i := range pairs {
		result, err := p.place(ctx, &pairs[i])
		if err != nil {
			return report, apply.TargetError(err)
		}
		report.add(result)
	}
	return report, nil
}

// recorded is the subscription, where publications are to come from it.
func (o *SequencesOptions) recorded(ctx context.Context, target *targetSession) (*state.Subscription, error) {
	if o.All || len(o.Publications) > 0 {
		return nil, nil
	}
	const hint = "name what is published with --publication, or copy --all; `pgapply run` records its publications"
	store, err := state.OpenExisting(ctx, target.conn, o.Name)
	if errors.Is(err, state.ErrNoSchema) {
		return nil, refused(hint, "database %q on the target knows no subscription %q", target.server.Database, o.Name)
	}
	if err != nil {
		return nil, apply.TargetError(err)
	}
	subscription, err := store.Subscription(ctx)
	switch {
	case err != nil:
		return nil, apply.TargetError(err)
	case subscription == nil:
		return nil, refused(hint, "database %q on the target knows no subscription %q", target.server.Database, o.Name)
	}
	return subscription, nil
}

// readSource lists the sequences of the publisher with their positions.
func (o *SequencesOptions) readSource(ctx context.Context, target *targetSession, recorded *state.Subscription) ([]source.Sequence, error) {
	conn, identity, err := o.openSource(ctx)
	if err != nil {
		return nil, err
	}
	defer closeSource(conn)
	if identity.SystemID == target.server.SystemID && identity.Database == target.server.Database {
		return nil, refused("give two different databases", "source and target are the same database, %q of the same server", identity.Database)
	}
	publications := o.Publications
	if recorded != nil {
		publications = recorded.Publications
		if identity.SystemID != recorded.Source.SystemID || identity.Database != recorded.Source.Database {
			return nil, refused("give the publisher's --source, or say with --publication or --all what is to be copied from this one",
				"--source is database %q of system %s, and subscription %q has its publications in database %q of system %s",
				identity.Database, identity.SystemID, o.Name, recorded.Source.Database, recorded.Source.SystemID)
		}
	}
	missing, err := conn.MissingPublications(ctx, publications)
	if err != nil {
		return nil, apply.SourceError(err)
	}
	if len(missing) > 0 {
		return nil, refused("correct --publication, or copy --all", "the publisher's database %q has no publication %s", identity.Database, quoted(missing))
	}
	list, err := conn.Sequences(ctx, publications, o.All)
	if err != nil {
		return nil, apply.SourceError(err)
	}
	return list, nil
}
