package schema

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/apply/catalog"
	"pgapply/decoder"
	"pgapply/internal/source"
)

// Comparison is a published table beside the target's of its name.
type Comparison struct {
	source.Published
	// Bound is nil where the two do not fit, and Mismatch says why.
	Bound    *catalog.Table
	Mismatch *catalog.MismatchError
}

// Compare looks for each published table on the target, as the stream will when its
// first change arrives. It changes nothing. The result is in the order of published.
func Compare(ctx context.Context, target *pgx.Conn, published []source.Published) (_ []Comparison, err error) {
	q := &querier{ctx: ctx, conn: target.PgConn()}
	if err := q.begin(); err != nil {
		return nil, fmt.Errorf("compare the published tables with the target's: %w", err)
	}
	defer func() { err = errors.Join(err, q.end()) }()
	list := make([]Comparison, len(published))
	for i := range published {
		c := &list[i]
		c.Published = published[i]
		bound, err := catalog.Load(q, relation(&c.Published), false)
		if err == nil {
			c.Bound = bound
			continue
		}
		var fits bool
		if c.Mismatch, fits = catalog.AsMismatch(err); !fits {
			return nil, err
		}
	}
	return list, nil
}

// querier is a catalog.QuerierOfAll over a control session, for one call of Compare. The
// catalogs' statements take longer to plan and to compile than to run, so each is planned
// once for all tables, and none is compiled.
type querier struct {
	ctx  context.Context
	conn *pgconn.PgConn
	// prepared are the statements that the session knows by their numbers.
	prepared []string
}

// begin begins the transaction in which plans hold for every table.
func (q *querier) begin() error {
	_, err := q.conn.Exec(q.ctx, `BEGIN READ ONLY; SET LOCAL plan_cache_mode TO force_generic_plan; SET LOCAL jit TO off`).ReadAll()
	return err
}

// end leaves the session as it was, unless it is lost.
func (q *querier) end() error {
	if q.conn.IsClosed() {
		return nil
	}
	ctx := context.WithoutCancel(q.ctx)
	_, err := q.conn.Exec(ctx, `ROLLBACK`).ReadAll()
	for number := range q.prepared {
		err = errors.Join(err, q.conn.Deallocate(ctx, statementName(number)))
	}
	return err
}

func statementName(number int) string { return "compare_" + strconv.Itoa(number) }

// prepare returns the name of a statement.
func (q *querier) prepare(sql string) (string, error) {
	number := slices.Index(q.prepared, sql)
	if number >= 0 {
		return statementName(number), nil
	}
	name := statementName(len(q.prepared))
	if _, err := q.conn.Prepare(q.ctx, name, sql, nil); err != nil {
		return "", err
	}
	q.prepared = append(q.prepared, sql)
	return name, nil
}

// QueryAll implements catalog.QuerierOfAll.
func (q *querier) QueryAll(sql []string, parameters ...string) ([][][][]byte, error) {
	values := make([][]byte, len(parameters))
	for i, parameter := range parameters {
		values[i] = []byte(parameter)
	}
	var batch pgconn.Batch
	for _, query := range sql {
		name, err := q.prepare(query)
		if err != nil {
			return nil, err
		}
		batch.ExecPrepared(name, values, nil, nil)
	}
	results, err := q.conn.ExecBatch(q.ctx, &batch).ReadAll()
	if err != nil {
		return nil, err
	}
	answers := make([][][][]byte, len(results))
	for i, result := range results {
		answers[i] = result.Rows
	}
	return answers, nil
}

// relation is what the publisher's stream will say of the table, without types.
func relation(published *source.Published) *decoder.Relation {
	r := &decoder.Relation{
		Namespace: published.Schema, Name: published.Name, ReplicaIdentity: decoder.ReplicaIdentity(published.Identity),
		Columns: make([]decoder.Column, len(published.Columns)),
	}
	for i, column := range published.Columns {
		r.Columns[i] = decoder.Column{Name: column.Name, Key: column.Key}
	}
	return r
}

// MisfitError lists every published table that the target's does not fit: missing
// tables, missing columns, and columns that cannot be written.
type MisfitError struct{ Misfits []*catalog.MismatchError }

func (e *MisfitError) Error() string {
	if len(e.Misfits) == 1 {
		return e.Misfits[0].Reason
	}
	reasons := make([]string, len(e.Misfits))
	for i, misfit := range e.Misfits {
		reasons[i] = misfit.Reason
	}
	return fmt.Sprintf("%d published tables do not fit the target: %s", len(e.Misfits), strings.Join(reasons, "; "))
}

// Hint is the remedy for all of them.
func (e *MisfitError) Hint() string {
	missing := 0
	for _, misfit := range e.Misfits {
		if misfit.Missing {
			missing++
		}
	}
	switch missing {
	case len(e.Misfits):
		return "create them on the target, or let --copy-schema do so"
	case 0:
		return "change them on the target; `pgapply check` names the remedy for each"
	}
	return "create or change them on the target; --copy-schema creates those that are missing, and `pgapply check` names the remedy for each"
}

// Misfits is the *MisfitError of a comparison, or nil. skipMissing says that tables
// which the target lacks are to be left out.
func Misfits(comparison []Comparison, skipMissing bool) error {
	var e MisfitError
	for i := range comparison {
		misfit := comparison[i].Mismatch
		if misfit == nil || misfit.Missing && skipMissing {
			continue
		}
		e.Misfits = append(e.Misfits, misfit)
	}
	if len(e.Misfits) == 0 {
		return nil
	}
	return &e
}
