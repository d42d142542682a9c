package apply

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/apply/state"
	"pgapply/internal/source"
)

// openStream starts the stream in a session with the publisher that has not looked
// at any table. A walsender keeps the definitions that it has seen and decodes also
// changes from before them in their light: a column that was dropped since would be
// left out, and one of another type misread. The session that has looked around lives on
// until the stream has the slot, which nobody can move from then on, and sees where it is.
func (a *attempt) openStream(ctx context.Context) (*source.Stream, error) {
	if a.feed == nil {
		if err := a.connectFeed(ctx); err != nil {
			return nil, err
		}
	}
	looked, before := a.publisher, recorded(a.identity)
	a.publisher, a.feed = a.feed, nil
	defer func() { _ = looked.Close() }() // it is of no further use either way
	alone := a.publisher == nil
	if alone { // a publisher without room for two walsenders is not looked at once more
		_ = looked.Close()
		var err error
		if a.publisher, err = a.dial(ctx, a.options.Name); err != nil {
			return nil, err
		}
	}
	if err := a.identify(ctx); err != nil {
		return nil, err
	}
	if recorded(a.identity) != before {
		return nil, elsewhere()
	}
	feed, err := a.startStream(ctx)
	if err != nil || alone {
		return feed, err
	}
	slot, err := looked.Slot(ctx, a.options.SlotName())
	switch {
	case err != nil:
		err = SourceError(err)
	case slot == nil || !slot.Active:
		err = elsewhere()
	default:
		err = a.ends().MayStream(slot, a.known)
	}
	if err != nil {
		_ = feed.Close() // the reason is err
		return nil, err
	}
	return feed, nil
}

// connectAhead is connectFeed while other things are done that take as long, unless that may
// be hours: as for the copy with which a subscription begins.
func (a *attempt) connectAhead(ctx context.Context) error {
	if !a.resumes() {
		return nil
	}
	return a.connectFeed(ctx)
}

// connectFeed opens the session for the stream, unless the publisher has no room for two.
func (a *attempt) connectFeed(ctx context.Context) (err error) {
	if a.feed, err = a.dial(ctx, a.options.Name); isFull(err) {
		return nil
	}
	return err
}

// isFull tells that a server has no room for another session.
func isFull(err error) bool {
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	return ok && refusal.Code == "53300"
}

// elsewhere is a publisher that is another server from one connection to the next.
func elsewhere() *Error {
	return &Error{Class: Source, Err: errors.New("--source leads to another publisher than a moment ago"), Retryable: true}
}

// startStream starts at the position that the target can prove, once the slot is free.
func (a *attempt) startStream(ctx context.Context) (*source.Stream, error) {
	var feed *source.Stream
	err := a.wait(ctx, func() (string, error) {
		slot, err := a.publisher.Slot(ctx, a.options.SlotName())
		if err == nil && slot != nil {
			err = a.ends().MayStream(slot, a.known) // it may have been waited for
		}
		if err != nil {
			return "", err
		}
		feed, err = a.publisher.StartStream(ctx, source.StreamOptions{
			Slot: a.options.SlotName(), Start: a.known, Publications: a.options.Publications,
			Streaming: a.streaming(), Binary: a.options.Binary, Origin: a.options.Origin,
			Messages: a.options.wantsMessages(), TwoPhase: a.options.TwoPhase,
		})
		if busy, ok := errors.AsType[*source.SlotBusyError](err); ok {
			return busy.Error(), a.endReceiver(ctx)
		}
		return "", err
	})
	if err != nil {
		return nil, sourceErrorOrRefused(err)
	}
	if c := &a.engine.calm; c.on && c.until == 0 {
		c.until = a.identity.Position
	}
	settings := feed.Settings()
	a.engine.mu.Lock()
	a.engine.mu.status.Stream = state.StreamOptions{
		Slot: a.options.SlotName(), Publications: a.options.Publications,
		Protocol: settings.ProtocolVersion, Streaming: settings.Streaming,
		TwoPhase: settings.TwoPhase, Binary: settings.Binary, Origin: settings.Origin,
		Progress: a.control.terms.Progress, Fires: a.control.terms.Fires,
	}
	a.engine.mu.Unlock()
	if a.end() > 0 {
		// The end may lie behind everything that the publisher will ever send.
		feed.Ask()
	}
	return feed, nil
}
