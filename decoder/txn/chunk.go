package txn

import (
	"math/bits"
	"sync"

	"pgapply/decoder"
	"pgapply/internal/invariant"
)

// Chunks come in sizes that are powers of four, so that a transaction of a few
// rows takes little and a large one needs few.
const (
	smallestChunk = 256
	largestChunk  = 256 << 10
	chunkSizes    = 6
)

// chunk is a piece of memory that holds whole records. Its length is what is
// used of it; it never grows beyond its capacity.
type chunk struct {
	data []byte
	page *page // that the memory is a part of; nil for a piece of its own
}

func (c *chunk) capacity() int64 { return int64(cap(c.data)) }

func (c *chunk) fits(size int) bool { return size <= cap(c.data)-len(c.data) }

// chunkCapacity is the capacity of the chunk that newChunk makes for size bytes:
// the next of the common sizes, or exactly size for what exceeds them all.
func chunkCapacity(size int) int {
	if size > largestChunk {
		return size
	}
	return smallestChunk << (2 * sizeClass(size))
}

// sizeClass numbers the common sizes from 0.
func sizeClass(size int) int {
	if size <= smallestChunk {
		return 0
	}
	return (bits.Len(uint(size-1)) - bits.Len(smallestChunk-1) + 1) / 2
}

// recycler hands memory of finished transactions to new ones, so that a steady
// load allocates nothing for a row. What nobody takes, the garbage collector
// does. Safe for concurrent use; the zero value is ready.
type recycler struct {
	chunks   [chunkSizes]sync.Pool
	pages    sync.Pool
	decoders sync.Pool
}

// newChunk returns an empty chunk with room for size bytes.
func (r *recycler) newChunk(size int) *chunk {
	capacity := chunkCapacity(size)
	if capacity <= largestChunk {
		if c, _ := r.chunks[sizeClass(size)].Get().(*chunk); c != nil {
			return c
		}
	}
	return &chunk{data: make([]byte, 0, capacity)}
}

// freeChunk takes a chunk back. Nobody may refer to its memory any more.
func (r *recycler) freeChunk(c *chunk) {
	if invariant.Enabled {
		poison(c.data)
	}
	if shared := c.page; shared != nil {
		*c = chunk{}
		shared.leave(r)
		return
	}
	if cap(c.data) > largestChunk {
		return
	}
	c.data = c.data[:0]
	r.chunks[sizeClass(cap(c.data))].Put(c)
}

// poison makes rows that somebody still reads after their release recognisable.
func poison(data []byte) {
	for i := range data {
		data[i] = 0xDB
	}
}

// newDecoder returns a decoder whose tuples have perhaps grown already.
func (r *recycler) newDecoder() *decoder.Decoder {
	if d, _ := r.decoders.Get().(*decoder.Decoder); d != nil {
		return d
	}
	return new(decoder.Decoder)
}

// freeDecoder takes a decoder back. Nobody may use its last message any more.
func (r *recycler) freeDecoder(d *decoder.Decoder) {
	if invariant.Enabled {
		d.Reset() // makes that noticed
	}
	r.decoders.Put(d)
}
