package operate

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// positioner sets sequences of the target so that none goes backwards while
// applications take values from it.
//
// setval writes what it is told, and a sequence cannot be locked with LOCK. But every
// nextval holds ROW EXCLUSIVE on the sequence until its transaction ends (sequence.c,
// lock_and_open_sequence), and ALTER SEQUENCE ... OWNER TO its owner takes ACCESS
// EXCLUSIVE and changes nothing. So under that lock the sequence is read once more,
// and set only when that is still a step ahead. Only a sequence that is to be moved is
// locked, and the wait is short, since nextval of others would queue up behind it.
//
// The lock is the owner's privilege. A role that may only use the sequence takes
// values instead, which is atomic and never goes back, up to climbLimit of them. Beyond
// that it sets the sequence in the same statement that compares it with what was
// read: others would have to take as many values within that one statement.
//
// What a session has cached (CACHE) it goes on giving out whatever the sequence says:
// such values are below where the sequence was, and were never to be had twice.
type positioner struct {
	conn    *pgx.Conn
	role    string
	options *SequencesOptions
}

const (
	// sequenceLockTimeout bounds the wait for those that have taken values in a
	// transaction that is still open.
	sequenceLockTimeout = "2s"
	// climbLimit is how many values are taken, at about a million in a second, rather
	// than set.
	climbLimit = 1_000_000
	// sequencesAtOnce is how many one statement reads: each takes a lock until its end.
	sequencesAtOnce = 200
	// positionTries is how often somebody may come in between.
	positionTries = 5
)

func quotedName(schema, name string) string { return pgx.Identifier{schema, name}.Sanitize() }

// list returns all sequences of the target.
func (p *positioner) list(ctx context.Context) ([]localSequence, error) {
	rows, err := p.conn.Query(ctx, `
		SELECT c.oid, n.nspname, c.relname, pg_catalog.format_type(s.seqtypid, NULL), s.seqincrement, s.seqmin, s.seqmax, s.seqcycle,
		       pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_sequence_privilege(c.oid, 'SELECT'),
		       pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_sequence_privilege(c.oid, 'UPDATE'),
		       r.rolname, pg_catalog.pg_has_role(c.relowner, 'USAGE'),
		       coalesce(tn.nspname, ''), coalesce(t.relname, ''), coalesce(a.attname, '')
		FROM pg_catalog.pg_sequence s
		JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid
		JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		JOIN pg_catalog.pg_roles r ON r.oid = c.relowner
		LEFT JOIN (pg_catalog.pg_depend d
			JOIN pg_catalog.pg_class t ON t.oid = d.refobjid
			JOIN pg_catalog.pg_namespace tn ON tn.oid = t.relnamespace
			JOIN pg_catalog.pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid)
			ON d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid
			AND d.refclassid = d.classid AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i')
		WHERE c.relpersistence <> 't'`)
	if err != nil {
		return nil, fmt.Errorf("list the sequences of the target: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[localSequence])
	if err != nil {
		return nil, fmt.Errorf("list the sequences of the target: %w", err)
	}
	return list, nil
}

// read fills in where the target's sequences are, before anything is locked.
func (p *positioner) read(ctx context.Context, pairs []sequencePair) error {
	var readable []*sequencePair
	for i := range pairs {
		if local := pairs[i].local; local != nil && local.Reads {
			readable = append(readable, &pairs[i])
		}
	}
	for batch := range slices.Chunk(readable, sequencesAtOnce) {
		parts := make([]string, len(batch))
		for i, pair := range batch {
			parts[i] = fmt.Sprintf("SELECT %d, last_value, is_called FROM %s", i, pair.local.quoted())
		}
		rows, err := p.conn.Query(ctx, strings.Join(parts, " UNION ALL "))
		if err != nil {
			return fmt.Errorf("read the sequences of the target: %w", err)
		}
		var place int
		var at Position
		_, err = pgx.ForEachRow(rows, []any{&place, &at.LastValue, &at.Called}, func() error {
			before := at
			batch[place].before = &before
			return nil
		})
		if err != nil {
			return fmt.Errorf("read the sequences of the target: %w", err)
		}
	}
	return nil
}

// place brings one sequence to where it should be. What is wrong with this one alone
// goes into the result.
func (p *positioner) place(ctx context.Context, pair *sequencePair) (SequenceResult, error) {
	result := SequenceResult{Sequence: pair.Schema + "." + pair.Name, Before: pair.before, After: pair.before}
	if pair.Readable {
		result.Source = &Position{LastValue: pair.LastValue, Called: pair.Called}
	}
	if local := pair.local; local != nil && (local.Schema != pair.Schema || local.Name != pair.Name) {
		result.Target = local.Schema + "." + local.Name
	}
	if text, remedy := p.obstacle(pair); text != "" {
		result.Outcome, result.Text, result.Remedy = SequenceRefused, text, remedy
		return result, nil
	}
	m := p.plan(pair, *pair.before)
	if m.outcome == SequenceSet && p.options.DryRun {
		result.After = &m.to
	} else if m.outcome == SequenceSet {
		var err error
		if m, err = p.set(ctx, pair, &result); err != nil {
			return result, fmt.Errorf("set sequence %s: %w", pair.local.quoted(), err)
		}
	}
	result.Outcome, result.Text, result.Remedy = m.outcome, m.text, m.remedy
	return result, nil
}

func (p *positioner) plan(pair *sequencePair, before Position) move {
	return planMove(&pair.Sequence, pair.local, before, p.options.Margin, p.options.AllowBackwards)
}

// obstacle says why a pair cannot be compared, or not be set.
func (p *positioner) obstacle(pair *sequencePair) (text, remedy string) {
	local := pair.local
	switch {
	case local == nil:
		return "the target has no such sequence", "create it there, or rename the one that is meant to be it"
	case !pair.Readable:
		return "the role of --source may not read it", fmt.Sprintf("on the publisher: GRANT SELECT ON SEQUENCE %s, and USAGE on its schema", quotedName(pair.Schema, pair.Name))
	case local.Increment != pair.Increment:
		return fmt.Sprintf("it counts by %d on the publisher, and by %d on the target", pair.Increment, local.Increment),
			fmt.Sprintf("if that is not wanted, on the target: ALTER SEQUENCE %s INCREMENT BY %d; else set it by hand", local.quoted(), pair.Increment)
	case !local.Reads || !local.Writes:
		return fmt.Sprintf("role %q may not set it", p.role),
			fmt.Sprintf("on the target: GRANT SELECT, UPDATE ON SEQUENCE %s TO %s, and USAGE on its schema", local.quoted(), pgx.Identifier{p.role}.Sanitize())
	}
	return "", ""
}

// set moves a sequence, and returns what was decided when it could be.
func (p *positioner) set(ctx context.Context, pair *sequencePair, result *SequenceResult) (move, error) {
	if !pair.local.Owns {
		return p.climb(ctx, pair, result)
	}
	m, err := p.setLocked(ctx, pair, result)
	const lockNotAvailable, insufficientPrivilege = "55P03", "42501"
	if server, ok := errors.AsType[*pgconn.PgError](err); ok && server.Code == lockNotAvailable {
		return move{
			outcome: SequenceRefused,
			text:    fmt.Sprintf("a transaction that is open for longer than %s holds it%s", sequenceLockTimeout, p.holders(ctx, pair.local)),
			remedy:  "end that transaction, then run this again",
		}, nil
	}
	return m, err
}

// setLocked holds the sequence still, looks at it once more, and sets it.
func (p *positioner) setLocked(ctx context.Context, pair *sequencePair, result *SequenceResult) (m move, err error) {
	local := pair.local
	err = pgx.BeginFunc(ctx, p.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_catalog.set_config('lock_timeout', $1, true)`, sequenceLockTimeout); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `ALTER SEQUENCE `+local.quoted()+` OWNER TO `+pgx.Identifier{local.Role}.Sanitize()); err != nil {
			return err
		}
		before, err := position(ctx, tx, local)
		if err != nil {
			return err
		}
		m = p.plan(pair, before)
		result.Before, result.After = &before, &before
		if m.outcome != SequenceSet {
			return nil
		}
		result.After = &m.to
		_, err = tx.Exec(ctx, `SELECT pg_catalog.setval($1::oid, $2, $3)`, local.OID, m.to.LastValue, m.to.Called)
		return err
	})
	return m, err
}

// climb moves a sequence that the role does not own, and so cannot hold still.
func (p *positioner) climb(ctx context.Context, pair *sequencePair, result *SequenceResult) (move, error) {
	for range positionTries {
		before, err := position(ctx, p.conn, pair.local)
		if err != nil {
			return move{}, err
		}
		m := p.plan(pair, before)
		result.Before, result.After = &before, &before
		if m.outcome != SequenceSet {
			return m, nil
		}
		if m.steps.Sign() > 0 && m.steps.Cmp(big.NewInt(climbLimit)) <= 0 {
			_, err := p.conn.Exec(ctx, `SELECT pg_catalog.count(pg_catalog.nextval($1::oid)) FROM pg_catalog.generate_series(1, $2::int4)`, pair.local.OID, m.steps.Int64())
			if err != nil {
				return move{}, err
			}
			after, err := position(ctx, p.conn, pair.local)
			result.After = &after
			return m, err
		}
		tag, err := p.conn.Exec(ctx, `SELECT pg_catalog.setval($1::oid, $2, $3) FROM `+pair.local.quoted()+` WHERE last_value = $4 AND is_called = $5`,
			pair.local.OID, m.to.LastValue, m.to.Called, before.LastValue, before.Called)
		if err != nil {
			return move{}, err
		}
		if tag.RowsAffected() == 1 {
			result.After = &m.to
			return m, nil
		}
	}
	return move{
		outcome: SequenceRefused, text: fmt.Sprintf("others take values from it all the time, and role %q does not own it", p.role),
		remedy: "run this again while applications rest, or as its owner",
	}, nil
}

// rowQuerier is a session or a transaction.
type rowQuerier interface {
	QueryRow(ctx context.Context, sql string, arguments ...any) pgx.Row
}

func position(ctx context.Context, q rowQuerier, local *localSequence) (Position, error) {
	var at Position
	err := q.QueryRow(ctx, `SELECT last_value, is_called FROM `+local.quoted()).Scan(&at.LastValue, &at.Called)
	return at, err
}

// holders names the sessions that have a lock on the sequence, or nobody when they
// are gone.
func (p *positioner) holders(ctx context.Context, local *localSequence) string {
	rows, err := p.conn.Query(ctx, `
		SELECT 'process ' || l.pid || coalesce(' (' || nullif(a.application_name, '') || ')', '')
		FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
		WHERE l.relation = $1::oid AND l.granted AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
		ORDER BY l.pid`, local.OID)
	if err != nil {
		return ""
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) == 0 {
		return ""
	}
	return ": " + strings.Join(names, ", ")
}
