package verify

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"pgapply/internal/lsn"
)

// Follower tells how far the target follows the publisher.
type Follower interface {
	// Applied is the position up to which everything that committed on the publisher
	// is visible on the target. follows is false while nobody applies.
	Applied(ctx context.Context) (position lsn.LSN, follows bool, err error)
}

// image is what an end has under a key.
type image struct {
	sum
	// columns are the hashes of a single row's columns.
	columns []uint64
	// version is another one after each change of the row; the publisher's only.
	version string
}

// candidate is a key that differed when it was read.
type candidate struct {
	id     int64
	values []string
	// seen is what the publisher has had since: the target may still be at any of it.
	seen           map[sum]bool
	source, target image
	// confirmed counts in how many rounds the publisher's was one and the same all the
	// time, and the target's another one.
	confirmed int
}

func newCandidate(id int64, values []string, has sum) *candidate {
	return &candidate{id: id, values: values, seen: map[sum]bool{has: true}}
}

const (
	// A row that is there shows by its version that nobody touched it while the target
	// was read. One that is absent may have come and gone meanwhile: that it did so in
	// each of absentRounds, exactly then, nobody believes.
	absentRounds = 3
	lookAgain    = 50 * time.Millisecond
)

func (c *candidate) proved() bool {
	if c.source.n > 0 && c.source.version != "" {
		return c.confirmed > 0
	}
	return c.confirmed >= absentRounds
}

// settled is what became of candidates.
type settled struct {
	differences []*candidate
	// unsettled changed whenever they were looked at, or the target did not get as far.
	unsettled []*candidate
	// behind is what kept the target from following, or empty.
	behind string
}

// settle looks at candidates until each is proved to differ, or was seen to be the same.
func (c *comparison) settle(ctx context.Context, t *table, open []*candidate) (result settled, err error) {
	deadline := time.Now().Add(c.options.Patience)
	for len(open) > 0 {
		before, err := c.look(ctx, t, sourceEnd, open)
		if err != nil {
			return result, err
		}
		for _, candidate := range open {
			candidate.source = before[candidate.id]
			candidate.seen[candidate.source.sum] = true
		}
		committed, err := c.now(ctx)
		if err != nil {
			return result, err
		}
		if result.behind, err = c.follow(ctx, committed, deadline); err != nil {
			return result, err
		}
		if open, err = c.compare(ctx, t, open, deadline, &result); err != nil {
			return result, err
		}
		if len(open) > 0 && (result.behind != "" || time.Now().After(deadline)) {
			result.unsettled = open
			return result, nil
		}
	}
	return result, nil
}

// compare reads the target, then the publisher once more, and returns what is still open.
func (c *comparison) compare(ctx context.Context, t *table, open []*candidate, deadline time.Time, result *settled) (left []*candidate, err error) {
	local, err := c.look(ctx, t, targetEnd, open)
	if err != nil {
		return nil, err
	}
	open = slices.DeleteFunc(open, func(candidate *candidate) bool {
		candidate.target = local[candidate.id]
		return candidate.seen[candidate.target.sum]
	})
	if len(open) == 0 {
		return nil, nil
	}
	if !c.follows() {
		result.differences = append(result.differences, open...)
		return nil, nil
	}
	hidden, err := c.visible(ctx, t, deadline)
	if err != nil {
		return nil, err
	}
	if result.behind == "" {
		result.behind = hidden
	}
	after, err := c.look(ctx, t, sourceEnd, open)
	if err != nil {
		return nil, err
	}
	for _, candidate := range open {
		now := after[candidate.id]
		if now.sum == candidate.source.sum && now.version == candidate.source.version {
			candidate.confirmed++
		} else {
			candidate.confirmed = 0
		}
		candidate.seen[now.sum] = true
		if result.behind == "" && candidate.proved() {
			result.differences = append(result.differences, candidate)
		} else {
			left = append(left, candidate)
		}
	}
	return left, nil
}

// moment is a time on the publisher: what committed before it has its place in the log
// below end. Beyond that lies what is not committed, and need not be on the disk soon.
type moment struct {
	end lsn.LSN
	// written is when what committed before is on the disk for sure, also of transactions
	// that did not wait for that (synchronous_commit), after which flushed is read.
	written time.Time
	flushed lsn.LSN
}

// now is what has committed on the publisher so far.
func (c *comparison) now(ctx context.Context) (m moment, err error) {
	// The WAL writer takes three rounds at most (manual, "Asynchronous Commit").
	rows, err := c.ask(ctx, `
		SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_insert_lsn() END,
			(4 * 1000 * extract(epoch FROM pg_catalog.current_setting('wal_writer_delay')::pg_catalog.interval))::pg_catalog.int8`)
	if err != nil {
		return m, err
	}
	delay, err := strconv.Atoi(rows[0][1])
	if err != nil {
		return m, err
	}
	m.written = time.Now().Add(time.Duration(delay) * time.Millisecond)
	m.end, err = lsn.Parse(rows[0][0])
	return m, err
}

// reached tells whether what has committed before the moment is applied.
func (c *comparison) reached(ctx context.Context, m *moment, applied lsn.LSN) (bool, error) {
	if applied >= m.end {
		return true, nil
	}
	if m.flushed == 0 && time.Now().After(m.written) {
		rows, err := c.ask(ctx, `SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn() ELSE pg_catalog.pg_current_wal_flush_lsn() END`)
		if err != nil {
			return false, err
		}
		if m.flushed, err = lsn.Parse(rows[0][0]); err != nil {
			return false, err
		}
	}
	return m.flushed != 0 && applied >= m.flushed, nil
}

// ask runs a query on the publisher.
func (c *comparison) ask(ctx context.Context, sql string) (rows [][]string, err error) {
	err = c.on(ctx, sourceEnd, func(s *session) error {
		if rows, err = s.query(ctx, sql); err != nil {
			return &EndError{Err: err}
		}
		return nil
	})
	return rows, err
}

// confirmed is what the publisher was told of what is durable on the target.
func (c *comparison) confirmed(ctx context.Context) (lsn.LSN, error) {
	rows, err := c.ask(ctx, `SELECT confirmed_flush_lsn FROM pg_catalog.pg_replication_slots WHERE slot_name = `+literal(c.options.Slot))
	if err != nil || len(rows) == 0 || rows[0][0] == "" {
		return 0, err
	}
	return lsn.Parse(rows[0][0])
}

// follow waits until the target has what had committed on the publisher. It says what
// keeps it from that.
func (c *comparison) follow(ctx context.Context, m moment, deadline time.Time) (behind string, err error) {
	for {
		applied, follows, err := c.applied(ctx)
		if err != nil || !follows {
			return "", err
		}
		reached, err := c.reached(ctx, &m, applied)
		switch {
		case err != nil || reached:
			return "", err
		case time.Now().After(deadline):
			return fmt.Sprintf("the subscription has applied changes up to %s, and did not get to %s within %s", applied, m.end, c.options.Patience), nil
		}
		if err := Pause(ctx, lookAgain); err != nil {
			return "", err
		}
	}
}

// lookAtOnce is how many keys one statement asks for.
const lookAtOnce = 200

// look reads what an end has under the candidates' keys now. What is not in the answer
// is absent.
func (c *comparison) look(ctx context.Context, t *table, end int, candidates []*candidate) (map[int64]image, error) {
	found := make(map[int64]image, len(candidates))
	for batch := range slices.Chunk(candidates, lookAtOnce) {
		wanted := make(map[int64]*candidate, len(batch))
		for _, candidate := range batch {
			wanted[candidate.id] = candidate
		}
		err := c.on(ctx, end, func(s *session) error {
			return s.each(ctx, t.lookSQL(end, batch), func(row [][]byte) error {
				id, err := strconv.ParseInt(string(row[0]), 10, 64)
				if err != nil || wanted[id] == nil {
					return err // a key that is equal and not the same
				}
				n, err := strconv.ParseInt(string(row[1]), 10, 64)
				if err != nil {
					return err
				}
				// Rows that are not published count for those only that are.
				if string(row[2]) != "t" && (end == sourceEnd || wanted[id].source.n == 0) {
					return nil
				}
				found[id] = found[id].with(n, string(row[3]), row[4:])
				return nil
			})
		})
		if err != nil {
			return nil, &EndError{Target: end == targetEnd, Err: err}
		}
	}
	return found, nil
}

// with adds n rows to the image, whose columns have these hashes.
func (i image) with(n int64, version string, hashes [][]byte) image {
	columns, row := make([]uint64, len(hashes)), uint64(0)
	for place, hash := range hashes {
		columns[place] = modulo(hash)
		row ^= columns[place]
	}
	i.add(n, uint64(n)*row)
	i.columns = nil
	if i.n == 1 {
		i.columns = columns
	}
	i.version += version
	return i
}

// lookSQL reads rows by their keys, or of a table without one by their hashes.
func (t *table) lookSQL(end int, batch []*candidate) string {
	var hashes strings.Builder
	for place := range t.columns {
		hashes.WriteString(", " + t.dialect.hashOf(&t.columns[place], place, end == sourceEnd))
	}
	published, version := "true", "''"
	if t.filter != "" {
		published = "coalesce((" + t.filter + "), false)"
	}
	if len(t.key) == 0 {
		ids := make([]string, len(batch))
		for i, candidate := range batch {
			ids[i] = strconv.FormatInt(candidate.id, 10)
		}
		return fmt.Sprintf(`SELECT %s, pg_catalog.count(*), %s, ''%s FROM %s WHERE (%s) IN (%s) GROUP BY %s`,
			t.hash(end), published, hashes.String(), t.whole(end), t.hash(end), strings.Join(ids, ", "), t.groups(published))
	}
	if end == sourceEnd {
		version = "xmin::pg_catalog.text || ctid::pg_catalog.text || ' '"
	}
	return fmt.Sprintf(`SELECT %s, 1, %s, %s%s FROM %s WHERE %s`,
		t.keyHash(end), published, version, hashes.String(), t.whole(end), t.keyCondition(batch))
}

// groups are the columns of the answer by which equal rows are counted.
func (t *table) groups(published string) string {
	list := []string{"1"}
	if published != "true" {
		list = append(list, "3")
	}
	for place := range t.columns {
		list = append(list, strconv.Itoa(5+place))
	}
	return strings.Join(list, ", ")
}

// keyCondition is SQL for the rows that have the candidates' keys.
func (t *table) keyCondition(batch []*candidate) string {
	names := t.keyNames()
	for i, name := range names {
		names[i] = identifier(name)
	}
	list := make([]string, len(batch))
	for i, candidate := range batch {
		values := make([]string, len(candidate.values))
		for place, value := range candidate.values {
			values[place] = literal(value)
		}
		list[i] = "(" + strings.Join(values, ", ") + ")"
	}
	return fmt.Sprintf("(%s) IN (%s)", strings.Join(names, ", "), strings.Join(list, ", "))
}
