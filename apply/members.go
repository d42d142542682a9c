package apply

import (
	"context"
	"errors"
	"sync"

	"go.uber.org/zap"

	"pgapply/apply/catalog"
	"pgapply/apply/state"
	"pgapply/internal/source"
)

// members are the tables that belong to the subscription. Changes of others are
// left out, as the native subscription leaves out what it was not refreshed for.
type members struct {
	log   *zap.Logger
	mu    sync.Mutex
	known map[state.Member]bool
	said  map[state.Member]bool
	// unread is set when the publisher did not say which tables it publishes now.
	unread *unreadError
}

// unreadError holds up the changes of a table that may belong to the subscription.
type unreadError struct{ reason string }

func (e *unreadError) Error() string {
	return "whether the table belongs to the subscription is not known yet: " + e.reason
}

// has tells whether a table belongs to the subscription, and says once in the log
// when a published one does not. It returns an error when that is not known yet.
func (m *members) has(schema, name string) (bool, error) {
	table := state.Member{Schema: schema, Name: name}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known[table] {
		return true, nil
	}
	if m.unread != nil {
		return false, m.unread
	}
	if !m.said[table] {
		m.said[table] = true
		m.log.Warn("a published table is not part of the subscription: its changes are left out until pgapply is started again",
			zap.String("schema", schema), zap.String("table", name))
	}
	return false, nil
}

// some tells whether any table belongs to the subscription.
func (m *members) some() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.known) > 0
}

// members reads the tables that the state knows.
func (a *attempt) members(ctx context.Context) (*members, error) {
	a.member = &members{log: a.log, known: make(map[state.Member]bool), said: make(map[state.Member]bool)}
	return a.member, a.member.load(ctx, a.control.store)
}

func (m *members) load(ctx context.Context, store *state.Store) error {
	tables, err := store.Members(ctx)
	if err != nil {
		return TargetError(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, table := range tables {
		m.known[table] = true
	}
	return nil
}

// joinTables takes in every table that is published now. Without an initial copy
// each is ready at once. A table that somebody has locked on the publisher holds up
// a first start only: a later one goes on with the tables that it knows, up to the
// first change of another one.
func (a *attempt) joinTables(ctx context.Context) error {
	published, err := a.publisher.Tables(ctx, a.options.Publications)
	if locked, ok := errors.AsType[*source.TablesLockedError](err); ok && a.member.some() {
		a.log.Info("go on with the tables that are known", zap.Error(locked))
		a.member.unread = &unreadError{locked.Error()}
	} else if err != nil {
		return SourceError(err)
	}
	tables := make([]state.Table, 0, len(published))
	for _, table := range published {
		tables = append(tables, state.Table{Schema: table.Schema, Name: table.Name, State: state.TableReady, StateLSN: a.known})
	}
	if err := a.control.store.RegisterTables(ctx, tables); err != nil {
		return TargetError(err)
	}
	if err := a.member.load(ctx, a.control.store); err != nil {
		return err
	}
	known, err := a.control.store.Tables(ctx)
	if err != nil {
		return TargetError(err)
	}
	a.engine.mu.Lock()
	defer a.engine.mu.Unlock()
	a.engine.mu.status.Tables = state.CountTables(known)
	return nil
}

// warnOfSideEffects says at the first start what will fire on the target and would
// not natively. Nothing can keep it from firing for what is written in SQL.
func (a *attempt) warnOfSideEffects(context.Context) error {
	if a.engine.streamed {
		return nil
	}
	effects, err := catalog.LoadSideEffects(a.session)
	if err != nil {
		return TargetError(err)
	}
	for _, effect := range effects {
		if a.member.known[state.Member{Schema: effect.Schema, Name: effect.Table}] {
			a.log.Warn(effect.String()+" is enabled for replicated changes and will fire, as it would not in the built-in subscription",
				zap.String("schema", effect.Schema), zap.String("table", effect.Table))
		}
	}
	return nil
}
