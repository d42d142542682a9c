package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"pgapply/internal/lsn"
)

// Options say what is compared, and how hard.
type Options struct {
	Source, Target End
	// ApplicationName is what both servers show of the sessions.
	ApplicationName string
	// Publications say which columns and rows of Tables are published.
	Publications []string
	Tables       []Table
	// Jobs is how many sessions each end has at most.
	Jobs int
	// RowsPerSecond bounds what is read of each end; 0 does not.
	RowsPerSecond int64
	// Limit is how many differing rows of a table are listed.
	Limit int
	// Sample, unless 0 or 1, compares one in so many rows; a power of two.
	Sample int64
	// Patience is how long rows that differ may take to settle.
	Patience time.Duration
	// Follow tells how far the target is; nil compares as it is. What the publisher's Slot
	// has been told is durable on the target is applied as well.
	Follow Follower
	Slot   string
	// Progress shows how far the comparison is; nil shows nobody.
	Progress *Progress
	// Repair takes the differences of each table, as they are found; nil for none.
	Repair func(ctx context.Context, differences *Differences) error

	// pages is how many blocks a slice has, and rows what stands for maxRows, for tests.
	pages, rows int64
}

// EndError is an error of one of the servers.
type EndError struct {
	Target bool
	Err    error
}

func (e *EndError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *EndError) Unwrap() error { return e.Err }

// comparison is one run.
type comparison struct {
	options *Options
	pools   [2]*pool
	limits  [2]*limiter
	// alone is set once nobody applies.
	alone atomic.Bool
}

// Run compares. Differences are in the report and no error. When ctx ends, so does the
// comparison, with an error.
func Run(ctx context.Context, options Options) (*Report, error) {
	c := &comparison{options: &options, limits: [2]*limiter{{rowsPerSecond: options.RowsPerSecond}, {rowsPerSecond: options.RowsPerSecond}}}
	if options.Progress == nil {
		options.Progress = &Progress{}
	}
	c.alone.Store(options.Follow == nil)
	started := time.Now()
	d, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer c.close()
	tables, err := c.describe(ctx, d)
	if err != nil {
		return nil, err
	}
	options.Progress.begin(tables)
	report := &Report{Tables: make([]TableReport, len(tables)), Sample: max(options.Sample, 1)}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(options.Jobs)
	for i, t := range tables {
		group.Go(func() error { return c.table(ctx, t, &report.Tables[i]) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	report.Alone = c.alone.Load()
	report.Seconds = time.Since(started).Seconds()
	report.total()
	return report, nil
}

// connect opens one session to each end, and settles how both write values.
func (c *comparison) connect(ctx context.Context) (*dialect, error) {
	ends := [2]End{c.options.Source, c.options.Target}
	digits := 3
	opener := func(end int) func(context.Context) (*session, error) {
		server := [2]string{"publisher", "target"}[end]
		return func(ctx context.Context) (*session, error) {
			s, err := open(ctx, server, ends[end], c.options.ApplicationName, readOnly())
			if err != nil {
				return nil, err
			}
			if s.major() >= 14 {
				// Whoever breaks off leaves no query behind, where the platform can tell.
				_, _ = s.query(ctx, `SELECT pg_catalog.set_config('client_connection_check_interval', '2s', false)`)
			}
			if digits != s.digits {
				if _, err := s.query(ctx, fmt.Sprintf(`SET extra_float_digits = %d`, digits)); err != nil {
					s.close()
					return nil, err
				}
				s.digits = digits
			}
			return s, nil
		}
	}
	var first [2]*session
	for end := range ends {
		s, err := opener(end)(ctx)
		if err != nil {
			if first[sourceEnd] != nil {
				first[sourceEnd].close()
			}
			return nil, &EndError{Target: end == targetEnd, Err: err}
		}
		first[end] = s
	}
	for end, s := range first {
		c.pools[end] = newPool(c.options.Jobs, s, opener(end))
	}
	const shortestFloats = 12
	d := &dialect{exactFloats: min(first[sourceEnd].major(), first[targetEnd].major()) >= shortestFloats}
	if !d.exactFloats {
		// Those inside of other types are compared with 15 digits, which all majors write alike.
		digits = 0
		for end, s := range first {
			if _, err := s.query(ctx, `SET extra_float_digits = 0`); err != nil {
				c.close()
				return nil, &EndError{Target: end == targetEnd, Err: err}
			}
		}
	}
	same, err := sameHashes(ctx, first)
	if err != nil {
		c.close()
		return nil, err
	}
	d.hash = chooseHash(first[sourceEnd], first[targetEnd], same)
	return d, nil
}

// sameHashes tells whether the servers' own hash function gives the same on both ends.
func sameHashes(ctx context.Context, ends [2]*session) (bool, error) {
	var answers [2]string
	for end, s := range ends {
		const since = 11
		if s.major() < since {
			return false, nil
		}
		rows, err := s.query(ctx, probe)
		if err != nil {
			return false, &EndError{Target: end == targetEnd, Err: err}
		}
		answers[end] = rows[0][0]
	}
	return answers[sourceEnd] == answers[targetEnd], nil
}

func (c *comparison) close() {
	for _, p := range c.pools {
		p.close()
	}
}

func (c *comparison) describe(ctx context.Context, d *dialect) (tables []*table, err error) {
	err = c.pools[sourceEnd].with(ctx, func(from *session) error {
		return c.pools[targetEnd].with(ctx, func(to *session) error {
			tables, err = describe(ctx, c.options, d, from, to)
			return err
		})
	})
	return tables, err
}

// on runs work on a session of an end.
func (c *comparison) on(ctx context.Context, end int, work func(*session) error) error {
	return c.pools[end].with(ctx, work)
}

// follows tells whether somebody applies.
func (c *comparison) follows() bool { return !c.alone.Load() }

func (c *comparison) applied(ctx context.Context) (position lsn.LSN, follows bool, err error) {
	if !c.follows() {
		return 0, false, nil
	}
	position, follows, err = c.options.Follow.Applied(ctx)
	if err == nil && !follows {
		c.alone.Store(true)
	}
	if err != nil || !follows {
		return 0, false, err
	}
	confirmed, err := c.confirmed(ctx)
	return max(position, confirmed), true, err
}

// table compares one table. What is wrong with this one alone goes into its report.
func (c *comparison) table(ctx context.Context, t *table, report *TableReport) error {
	defer c.options.Progress.tableDone(t.Table)
	started := time.Now()
	*report = TableReport{Table: t.String(), Key: t.keyNames(), Differences: []Difference{}}
	err := t.fault
	if err == nil {
		c.options.Progress.tableBegun(t.Table)
		err = c.rows(ctx, t, report)
	}
	report.Seconds = time.Since(started).Seconds()
	if err == nil {
		return nil
	}
	if t.fault == nil && (ctx.Err() != nil || !ofTable(err)) {
		return fmt.Errorf("compare table %s: %w", t, err)
	}
	report.Error = describeError(err)
	return nil
}

// ofTable tells whether an error is about a table and not about a server: privileges,
// a cast that fails, a table that was dropped.
func ofTable(err error) bool {
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || refusal.Severity != "ERROR" {
		return false
	}
	switch refusal.Code[:2] {
	case "08", "53", "57", "58", "XX": // connection, resources, intervention, system, internal
		return false
	}
	return true
}

// describeError is without the values of a row that a server may quote.
func describeError(err error) string {
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && refusal.Code[:2] == "22" {
		text, _, _ := strings.Cut(refusal.Message, ":")
		return text + " (SQLSTATE " + refusal.Code + ")"
	}
	return strings.ToValidUTF8(err.Error(), "?")
}

func (c *comparison) rows(ctx context.Context, t *table, report *TableReport) error {
	var sums [2][]sum
	group, both := errgroup.WithContext(ctx)
	for end := range sums {
		group.Go(func() (err error) {
			if sums[end], err = c.chunks(both, t, end); err != nil {
				return &EndError{Target: end == targetEnd, Err: err}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for chunk := range sums[sourceEnd] {
		report.SourceRows += sums[sourceEnd][chunk].n
		report.TargetRows += sums[targetEnd][chunk].n
	}
	var result settled
	left := compareSums(sums)
	// Where much is written many chunks differ, and few of their rows.
	for len(left) > 0 && len(result.differences) < enough {
		var chunks []int64
		chunks, left = some(left, cmp.Or(c.options.rows, maxRows))
		open, err := c.candidates(ctx, t, chunks)
		if err != nil {
			return err
		}
		found, err := c.settle(ctx, t, open)
		if err != nil {
			return err
		}
		result.differences = append(result.differences, found.differences...)
		result.unsettled = append(result.unsettled, found.unsettled...)
		result.behind = cmp.Or(result.behind, found.behind)
	}
	unexamined := int64(0)
	for _, u := range left {
		unexamined += u.rows
	}
	slices.SortFunc(result.differences, func(a, b *candidate) int { return compareKeys(a.values, b.values) })
	report.add(t, &result, unexamined, c.options.Limit)
	if c.options.Repair == nil || len(result.differences) == 0 {
		return nil
	}
	return c.options.Repair(ctx, &Differences{comparison: c, table: t, list: result.differences, report: report})
}

// compareKeys puts numbers in their order and everything else in that of its bytes.
func compareKeys(a, b []string) int {
	for i := range min(len(a), len(b)) {
		one, other := a[i], b[i]
		if digits(one) && digits(other) {
			if order := cmp.Compare(len(one), len(other)); order != 0 {
				return order
			}
		}
		if order := cmp.Compare(one, other); order != 0 {
			return order
		}
	}
	return cmp.Compare(len(a), len(b))
}

func digits(text string) bool { return text != "" && strings.Trim(text, "0123456789") == "" }
