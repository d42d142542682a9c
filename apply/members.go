package apply

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"pgapply/apply/catalog"
	"pgapply/apply/state"
	"pgapply/apply/tablesync"
	"pgapply/internal/source"
)

// members are the tables that take part in a stream: of the subscription's own those
// that are ready. Changes of others are left out, as the native subscription leaves
// out what it was not refreshed for. Those of a table that is being copied come
// another way.
type members struct {
	log *zap.Logger
	// unknown, unless nil, hears of a table that the state does not know, and tells
	// whether it is taken in.
	unknown func(schema, name string) bool

	mu    sync.Mutex
	known map[state.Member]state.TableState
	said  map[state.Member]bool
	// missing are those that the target does not have, where that is to be passed over.
	missing map[state.Member]bool
	// unread is set when the publisher did not say which tables it publishes now.
	unread *unreadError
}

func newMembers(log *zap.Logger) *members {
	return &members{log: log, said: make(map[state.Member]bool)}
}

// unreadError holds up the changes of a table that may belong to the subscription.
type unreadError struct{ reason string }

func (e *unreadError) Error() string {
	return "whether the table belongs to the subscription is not known yet: " + e.reason
}

// has tells whether a table takes part, and says once in the log when a published one
// does not belong to the subscription. It returns an error when that is not known yet.
func (m *members) has(schema, name string) (bool, error) {
	table := state.Member{Schema: schema, Name: name}
	m.mu.Lock()
	defer m.mu.Unlock()
	if is, known := m.known[table]; known {
		return is == state.TableReady, nil
	}
	if m.unread != nil {
		return false, m.unread
	}
	if m.said[table] {
		return false, nil
	}
	m.said[table] = true
	if m.unknown != nil && m.unknown(schema, name) {
		return false, nil
	}
	m.log.Warn("a published table is not part of the subscription: its changes are left out until `pgapply refresh` or another start takes it in",
		zap.String("schema", schema), zap.String("table", name))
	return false, nil
}

// apart tells whether a table belongs to the subscription and does not take part.
func (m *members) apart(schema, name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	is, known := m.known[state.Member{Schema: schema, Name: name}]
	return known && is != state.TableReady
}

// takesPart tells whether a table's changes come with the stream.
func (m *members) takesPart(table state.Table) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known[table.Member] == state.TableReady
}

// knows tells whether a table belongs to the subscription.
func (m *members) knows(table state.Table) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, known := m.known[table.Member]
	return known
}

// set says which tables there are.
func (m *members) set(tables []state.Table) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known = make(map[state.Member]state.TableState, len(tables))
	for _, table := range tables {
		m.known[table.Member] = table.State
	}
}

// ready tells whether all tables of the subscription take part, but for those that are
// passed over.
func (m *members) ready() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for table, is := range m.known {
		if is != state.TableReady && !m.missing[table] {
			return false
		}
	}
	return true
}

// meets has the stream start over for a table that it has met, so that the table is
// taken in; once for each, since it may not be published any more.
func (a *attempt) meets(schema, name string) bool {
	if !a.options.Tables.Has(schema, name) {
		return false
	}
	if _, again := a.engine.met.LoadOrStore(state.Member{Schema: schema, Name: name}, true); again {
		return false
	}
	a.log.Info("a published table is taken into the subscription", zap.String("schema", schema), zap.String("table", name))
	select {
	case a.met <- struct{}{}:
	default:
	}
	return true
}

// passOver looks for tables that the target lacks and that are to be skipped then: an end
// of the stream does not wait for their copy.
func (a *attempt) passOver(ctx context.Context) error {
	if a.options.MissingTable != "skip" || a.member.ready() {
		return nil
	}
	tables, err := a.control.store.Tables(ctx)
	if err != nil {
		return TargetError(err)
	}
	missing, err := tablesync.Missing(a.session, a.toCopy(inState(tables, state.TableInit)))
	if err != nil {
		return TargetError(err)
	}
	a.member.mu.Lock()
	defer a.member.mu.Unlock()
	a.member.missing = make(map[state.Member]bool, len(missing))
	for _, table := range missing {
		a.member.missing[member(table)] = true
	}
	return nil
}

// some tells whether any table belongs to the subscription.
func (m *members) some() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.known) > 0
}

// readMembers reads the tables that the state knows, for the stream and the status.
func (a *attempt) readMembers(ctx context.Context) ([]state.Table, error) {
	tables, err := a.control.store.Tables(ctx)
	if err != nil {
		return nil, TargetError(err)
	}
	a.tables = tables
	a.member.set(tables)
	a.engine.mu.Lock()
	defer a.engine.mu.Unlock()
	a.engine.mu.status.Tables = state.CountTables(tables)
	return tables, nil
}

// joinTables takes in every table that is published now: to be copied, or as one that
// is ready. A table that somebody has locked on the publisher holds up a first start
// only: a later one goes on with the tables that it knows, up to the first change of
// another one.
func (a *attempt) joinTables(ctx context.Context) error {
	wanted, err := a.wantedTables(ctx)
	if locked, ok := errors.AsType[*source.TablesLockedError](err); ok && a.member.some() {
		a.log.Info("go on with the tables that are known", zap.Error(locked))
		a.member.unread = &unreadError{locked.Error()}
	} else if err != nil {
		return SourceError(err)
	}
	wanted = slices.DeleteFunc(wanted, a.member.knows)
	if len(wanted) == 0 {
		return nil
	}
	a.subscription = nil
	return targetErrorOrNil(a.control.store.RegisterTables(ctx, wanted))
}

// wantedTables are those that are published now and that the options do not leave out,
// in the state in which they enter the subscription.
func (a *attempt) wantedTables(ctx context.Context) ([]state.Table, error) {
	published, err := a.publisher.Tables(ctx, a.options.Publications)
	if err != nil {
		return nil, err
	}
	var wanted []state.Table
	for _, table := range published {
		if a.options.Tables.Has(table.Schema, table.Name) {
			wanted = append(wanted, a.options.entering(state.Member(table), a.known))
		}
	}
	return wanted, nil
}

// TableFilter chooses among the published tables by patterns SCHEMA.TABLE, in either
// part of which * stands for any characters; a pattern without a dot is one for tables
// of any schema. A name may also be quoted, as SQL wants it and `pgapply status --tables`
// shows it; nothing has another meaning in quotes.
type TableFilter struct {
	// Include, unless empty, are the only ones; Exclude are left out all the same.
	Include, Exclude []string
}

// Has tells whether a table passes.
func (f *TableFilter) Has(schema, table string) bool {
	return (len(f.Include) == 0 || matches(f.Include, schema, table)) && !matches(f.Exclude, schema, table)
}

func matches(patterns []string, schema, table string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		inSchema, name, qualified := strings.Cut(pattern, ".")
		if !qualified {
			inSchema, name = "*", pattern
		}
		return like(inSchema, schema) && like(name, table) || isQuoted(pattern, schema, table)
	})
}

// isQuoted tells whether text is the table's name with quotes around one part or both.
func isQuoted(text, schema, table string) bool {
	inQuotes, itself := pgx.Identifier{schema}.Sanitize(), pgx.Identifier{table}.Sanitize()
	return text == itself || text == inQuotes+"."+itself || text == inQuotes+"."+table || text == schema+"."+itself
}

// like compares a name with a pattern, in which only * has a meaning.
func like(pattern, name string) bool {
	first, rest, more := strings.Cut(pattern, "*")
	if !more {
		return pattern == name
	}
	if !strings.HasPrefix(name, first) {
		return false
	}
	for left := name[len(first):]; ; left = left[1:] {
		if like(rest, left) {
			return true
		}
		if left == "" {
			return false
		}
	}
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
		if _, ours := a.member.known[state.Member{Schema: effect.Schema, Name: effect.Table}]; ours {
			a.log.Warn(effect.String()+" is enabled for replicated changes and will fire, as it would not in the built-in subscription",
				zap.String("schema", effect.Schema), zap.String("table", effect.Table))
		}
	}
	return nil
}
