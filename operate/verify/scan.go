package verify

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
)

// sum stands for a set of rows: how many, and their hashes added up.
type sum struct {
	n int64
	h uint64
}

func (s *sum) add(n int64, h uint64) {
	s.n += n
	s.h += h
}

// slice is a range of blocks of a part; without an end it goes on as far as the part does.
type slice struct {
	part       string
	from, to   int64
	whole      bool
	blocks     int64
	unfinished bool
}

const (
	// slicePages is how many blocks a statement reads, 128 MiB in the usual size.
	slicePages = 1 << 14
	// A smaller table has slicesAtLeast slices, so that progress shows and all sessions have
	// work, unless they had fewer than fewPages.
	slicesAtLeast = 16
	fewPages      = 1 << 10
	// smallestSlice is worth a statement, also where rows are to be read slowly.
	smallestSlice = 16
)

// slices cuts a table into what one statement reads.
func (c *comparison) slices(r *relation) (all []slice) {
	step := cmp.Or(c.options.pages, min(slicePages, max(fewPages, r.pages()/slicesAtLeast)))
	if c.options.RowsPerSecond > 0 {
		perPage := max(1, r.rows()/max(r.pages(), 1))
		step = min(step, max(smallestSlice, c.options.RowsPerSecond/perPage/2))
	}
	for _, p := range r.parts {
		if !p.ranges || p.pages <= step {
			all = append(all, slice{part: p.name, whole: true, blocks: p.pages})
			continue
		}
		for from := int64(0); from < p.pages; from += step {
			s := slice{part: p.name, from: from, to: from + step, blocks: min(step, p.pages-from)}
			s.unfinished = s.to >= p.pages // rows may have come behind it meanwhile
			all = append(all, s)
		}
	}
	return all
}

// condition is SQL for the rows of a slice that are compared.
func (s *slice) condition(t *table, end int) string {
	var parts []string
	if !s.whole {
		parts = append(parts, fmt.Sprintf("ctid >= '(%d,0)'", s.from))
		if !s.unfinished {
			parts = append(parts, fmt.Sprintf("ctid < '(%d,0)'", s.to))
		}
	}
	if t.filter != "" {
		parts = append(parts, "("+t.filter+")")
	}
	if t.sample > 1 {
		parts = append(parts, fmt.Sprintf("(%s >> 40) & %d = 0", parenthesized(t.keyHash(end)), t.sample-1))
	}
	if len(parts) == 0 {
		return "true"
	}
	return strings.Join(parts, " AND ")
}

func parenthesized(sql string) string { return "(" + sql + ")" }

// scan runs a statement over each slice of a table on one end, several at once, and
// gives the rows of its answer to take, one at a time. rows says how many rows of the
// table such a row stands for.
func (c *comparison) scan(ctx context.Context, t *table, end int, sql func(*slice) string, take func(row [][]byte) (rows int64, err error)) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(c.options.Jobs)
	var mu sync.Mutex
	for _, s := range c.slices(&t.ends[end]) {
		group.Go(func() error {
			if err := c.limits[end].wait(ctx); err != nil {
				return err
			}
			return c.on(ctx, end, func(session *session) error {
				read := int64(0)
				err := session.each(ctx, sql(&s), func(row [][]byte) error {
					mu.Lock()
					defer mu.Unlock()
					rows, err := take(row)
					read += rows
					return err
				})
				c.limits[end].read(read)
				c.options.Progress.read(read, s.blocks)
				return err
			})
		})
	}
	return group.Wait()
}

// chunks adds up the table's chunks on one end.
func (c *comparison) chunks(ctx context.Context, t *table, end int) ([]sum, error) {
	sums := make([]sum, t.mask+1)
	key, row := t.keyHash(end), t.hash(end)
	err := c.scan(ctx, t, end, func(s *slice) string {
		return fmt.Sprintf(`SELECT (%s) & %d, pg_catalog.count(*), pg_catalog.sum(%s) FROM ONLY %s WHERE %s GROUP BY 1`,
			key, t.mask, row, s.part, s.condition(t, end))
	}, func(row [][]byte) (int64, error) {
		chunk, err := strconv.ParseInt(string(row[0]), 10, 64)
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(string(row[1]), 10, 64)
		sums[chunk].add(n, modulo(row[2]))
		return n, err
	})
	return sums, err
}

// modulo reads a whole number of any size as the server adds hashes up in, modulo 2^64.
func modulo(text []byte) (n uint64) {
	for _, digit := range text {
		if digit != '-' {
			n = 10*n + uint64(digit-'0')
		}
	}
	if len(text) > 0 && text[0] == '-' {
		return -n
	}
	return n
}

// keyed is what one key has on one end: its rows, of which there is one unless the key
// is the row, or the target has no unique index.
type keyed struct {
	sum
	// values are the key's, as its columns write them; of a table without a key, none.
	values []string
}

// rowsOf reads the rows of chunks by the hashes of their keys.
func (c *comparison) rowsOf(ctx context.Context, t *table, end int, chunks []int64) (map[int64]*keyed, error) {
	found := make(map[int64]*keyed)
	numbers := make([]string, len(chunks))
	for i, chunk := range chunks {
		numbers[i] = strconv.FormatInt(chunk, 10)
	}
	key, row := t.keyHash(end), t.hash(end)
	selected, grouped := fmt.Sprintf("SELECT %s, 1, %s", key, row), ""
	for _, place := range t.key {
		selected += ", " + output(identifier(t.columns[place].name))
	}
	if len(t.key) == 0 {
		selected, grouped = fmt.Sprintf("SELECT %s, pg_catalog.count(*), pg_catalog.sum(%s)", row, row), " GROUP BY 1"
	}
	err := c.scan(ctx, t, end, func(s *slice) string {
		return fmt.Sprintf(`%s FROM ONLY %s WHERE %s AND (%s) & %d IN (%s)%s`,
			selected, s.part, s.condition(t, end), key, t.mask, strings.Join(numbers, ", "), grouped)
	}, func(row [][]byte) (int64, error) {
		id, err := strconv.ParseInt(string(row[0]), 10, 64)
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(string(row[1]), 10, 64)
		if err != nil {
			return 0, err
		}
		k := found[id]
		if k == nil {
			k = &keyed{values: texts(row[3:])}
			found[id] = k
		}
		k.add(n, modulo(row[2]))
		return 0, nil
	})
	return found, err
}

func texts(fields [][]byte) []string {
	list := make([]string, len(fields))
	for i, field := range fields {
		list[i] = string(field)
	}
	return list
}

const (
	// maxRows is how many rows of a table are in memory at a time, to be looked at one by one.
	maxRows = 500_000
	// enough is how many differences of a table are worth to be looked for.
	enough = 100_000
)

// unequal is a chunk whose sums differ, and how many rows it has.
type unequal struct{ chunk, rows int64 }

// compareSums lists the chunks that differ.
func compareSums(sums [2][]sum) (list []unequal) {
	for chunk := range sums[sourceEnd] {
		if theirs, ours := sums[sourceEnd][chunk], sums[targetEnd][chunk]; theirs != ours {
			list = append(list, unequal{int64(chunk), max(theirs.n, ours.n)})
		}
	}
	return list
}

// some splits off as many chunks as fit into memory, one at least.
func some(list []unequal, limit int64) (chunks []int64, rest []unequal) {
	rows := int64(0)
	for i, u := range list {
		if rows += u.rows; rows > limit && i > 0 {
			return chunks, list[i:]
		}
		chunks = append(chunks, u.chunk)
	}
	return chunks, nil
}

// candidates finds the keys that differ in these chunks, by what each end has now.
func (c *comparison) candidates(ctx context.Context, t *table, chunks []int64) (list []*candidate, err error) {
	var rows [2]map[int64]*keyed
	group, side := errgroup.WithContext(ctx)
	for end := range rows {
		group.Go(func() (err error) {
			if rows[end], err = c.rowsOf(side, t, end, chunks); err != nil {
				return &EndError{Target: end == targetEnd, Err: err}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	theirs, ours := rows[sourceEnd], rows[targetEnd]
	for id, k := range theirs {
		local := ours[id]
		delete(ours, id)
		if local == nil || local.sum != k.sum {
			list = append(list, newCandidate(id, k.values, k.sum))
		}
	}
	for id, k := range ours {
		list = append(list, newCandidate(id, k.values, sum{}))
	}
	return list, nil
}
