package stream

import (
	"pgapply/decoder"
	"pgapply/internal/lsn"
)

// backlog remembers when what is received and not applied has committed on the publisher:
// not of every transaction, which there may be many of, but of as many as tell the age
// of the oldest closely enough. Commits arrive in the order of their positions, their
// times nearly so. The zero value is ready.
type backlog struct {
	marks []mark
	// apart is the least time between two marks, in microseconds.
	apart decoder.Timestamp
}

type mark struct {
	end  lsn.LSN
	time decoder.Timestamp
}

// leastApart is how close marks are, in microseconds, unless there are mostMarks.
const leastApart decoder.Timestamp = 10_000

const mostMarks = 1024

// received takes a transaction in.
func (b *backlog) received(end lsn.LSN, time decoder.Timestamp) {
	if time == 0 {
		return
	}
	if n := len(b.marks); n == 0 {
		b.apart = leastApart
	} else if time < b.marks[n-1].time+b.apart {
		// Applied is only what the last one of those that share a mark is in.
		b.marks[n-1].end = end
		return
	}
	if len(b.marks) == mostMarks {
		b.thin()
	}
	b.marks = append(b.marks, mark{end, time})
}

// thin joins marks that are close to each other, and goes further apart until enough are.
func (b *backlog) thin() {
	for len(b.marks) > mostMarks/2 {
		b.apart *= 2
		kept := b.marks[:0]
		for _, m := range b.marks {
			if n := len(kept); n > 0 && m.time < kept[n-1].time+b.apart {
				kept[n-1].end = m.end
				continue
			}
			kept = append(kept, m)
		}
		b.marks = kept
	}
}

// oldest lets go of what is applied, and returns when the oldest of the rest committed;
// 0 where there is none.
func (b *backlog) oldest(applied lsn.LSN) decoder.Timestamp {
	done := 0
	for done < len(b.marks) && b.marks[done].end <= applied {
		done++
	}
	b.marks = append(b.marks[:0], b.marks[done:]...)
	if len(b.marks) == 0 {
		return 0
	}
	return b.marks[0].time
}
