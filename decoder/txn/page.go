package txn

import (
	"sync/atomic"

	"pgapply/internal/invariant"
)

// pageSize is the memory that small transactions share. One of them that is held keeps
// the whole of it, so it is not large.
const pageSize = 16 << 10

// page is memory that ordinary transactions of a few rows lie in, one behind the other.
// They come by the thousand, and one is over when the next begins: so each takes exactly
// what its changes need, and nobody has to guess how many will come.
//
//	| transaction | transaction | transaction that arrives ~~~~ | - - -
//	                                              len and cap of its chunk
//
// Its chunks may be freed on any goroutine; the rest is the assembler's.
type page struct {
	data  []byte
	taken int          // bytes at the start that chunks have
	users atomic.Int32 // chunks that are not freed, and the assembler
}

// begin gives the tape, which has none, a chunk of that capacity. There must be room.
func (p *page) begin(t *tape, capacity int) {
	p.users.Add(1)
	t.first = chunk{data: p.data[p.taken : p.taken : p.taken+capacity], page: p}
	t.add(&t.first)
	p.taken += capacity
}

// extend makes the tape's chunk, which must be the last of the page, larger in place.
func (p *page) extend(t *tape, by int) {
	c := &t.first
	start := p.taken - cap(c.data)
	c.data = p.data[start : start+len(c.data) : p.taken+by]
	p.taken += by
	t.memory += int64(by)
}

// trim takes back what the last chunk of the page does not need, now that it is complete.
func (p *page) trim(t *tape) (freed int64) {
	c := &t.first
	unused := cap(c.data) - len(c.data)
	c.data = c.data[:len(c.data):len(c.data)]
	p.taken -= unused
	t.memory -= int64(unused)
	return int64(unused)
}

// room is what is left of the page. There may be no page.
func (p *page) room() int {
	if p == nil {
		return 0
	}
	return len(p.data) - p.taken
}

// leave ends the use by one chunk, or by the assembler.
func (p *page) leave(r *recycler) {
	users := p.users.Add(-1)
	invariant.Check(users >= 0, "a page has %d users", users)
	if users == 0 {
		p.taken = 0
		r.pages.Put(p)
	}
}

// newPage returns an empty page, which the caller uses.
func (r *recycler) newPage() *page {
	p, _ := r.pages.Get().(*page)
	if p == nil {
		p = &page{data: make([]byte, pageSize)}
	}
	p.users.Store(1)
	return p
}
