package integration

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync"

	"pgapply/internal/faultnet"
	"pgapply/internal/lsn"
)

// vandals sit in the streams of a publisher. Each time that one is let loose it damages one
// frame in one way: the first, from some moment on, that can be damaged so. What it does
// always shows: it breaks the structure of frames or their order, and never changes a value
// into another one, which nobody could tell from what the publisher meant. For the same
// reason it neither repeats nor exchanges nor drops single rows, and drops no whole
// transactions.
type vandals struct {
	random *rand.Rand

	mu    sync.Mutex
	way   *damage // of the one that is loose
	wait  int     // frames that still pass
	fired chan struct{}
	// sent is the largest position that the publisher has sent; overdrawn is what the
	// client acknowledged beyond that.
	sent, overdrawn lsn.LSN
}

// loose lets one loose. The channel is closed when it has done its damage.
func (all *vandals) loose(way *damage) (fired <-chan struct{}) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.way, all.wait, all.fired = way, all.random.IntN(60), make(chan struct{})
	return all.fired
}

// vandal sits in one stream.
type vandal struct {
	*vandals
	inStream  bool
	announced uint64   // where the ordinary transaction in hand commits
	since     [][]byte // its frames, if they are few
	held      []byte   // a frame that comes behind the next one
	insert    []byte   // the last one of an ordinary transaction
}

// copyFrame is a CopyData frame of the publisher in its parts.
type copyFrame struct {
	raw     []byte
	kind    byte   // w or k
	payload []byte // of w
}

func (f copyFrame) message() byte {
	if len(f.payload) == 0 {
		return 0
	}
	return f.payload[0]
}

func (f copyFrame) is(kinds string) bool {
	return f.message() != 0 && bytes.IndexByte([]byte(kinds), f.message()) >= 0
}

const (
	frameHead = 5
	dataHead  = frameHead + 1 + 8 + 8 + 8
)

func parseCopy(raw []byte) (copyFrame, bool) {
	if raw[0] != 'd' || len(raw) < dataHead-7 {
		return copyFrame{}, false
	}
	f := copyFrame{raw: raw, kind: raw[frameHead]}
	if f.kind == 'w' && len(raw) >= dataHead {
		f.payload = raw[dataHead:]
	}
	return f, true
}

// withSize is a frame with the length that it has.
func withSize(raw []byte) []byte {
	binary.BigEndian.PutUint32(raw[1:], uint32(len(raw)-1))
	return raw
}

// changed is a copy of a frame with some bytes of its own changed.
func changed(raw []byte, change func(raw []byte)) []byte {
	raw = bytes.Clone(raw)
	change(raw)
	return raw
}

// withPayload is a data frame with another message, at the position of f.
func (f copyFrame) withPayload(payload []byte) []byte {
	return withSize(append(bytes.Clone(f.raw[:dataHead]), payload...))
}

// serverMessage is a message of another kind than CopyData.
func serverMessage(kind byte, body ...byte) []byte {
	return withSize(append([]byte{kind, 0, 0, 0, 0}, body...))
}

func serverError(kind byte, code, text string) []byte {
	return serverMessage(kind, []byte("SERROR\x00VERROR\x00C"+code+"\x00M"+text+"\x00\x00")...)
}

// damage is a way to damage a frame. It returns what is sent in place of it, or nothing
// where it cannot damage this one.
type damage struct {
	name   string
	damage func(v *vandal, f copyFrame) []byte
}

// boundaries are the messages by which a transaction or a part of it begins or ends.
const boundaries = "BCSEc"

var damages = []damage{
	{"cut short", func(v *vandal, f copyFrame) []byte {
		if f.is("A") { // has two lengths
			return nil
		}
		return withSize(bytes.Clone(f.raw[:frameHead+v.random.IntN(len(f.raw)-frameHead)]))
	}},
	{"too long", func(v *vandal, f copyFrame) []byte {
		if f.is("A") {
			return nil
		}
		return withSize(append(bytes.Clone(f.raw), make([]byte, 1+v.random.IntN(40))...))
	}},
	{"unknown kind of frame", func(_ *vandal, f copyFrame) []byte {
		return changed(f.raw, func(raw []byte) { raw[frameHead] = 'q' })
	}},
	{"unknown kind of message", func(_ *vandal, f copyFrame) []byte {
		if f.payload == nil {
			return nil
		}
		return changed(f.raw, func(raw []byte) { raw[dataHead] = 'z' })
	}},
	{"unknown table", func(v *vandal, f copyFrame) []byte {
		if !f.is("IUD") {
			return nil
		}
		return changed(f.raw, func(raw []byte) { raw[dataHead+1+v.xidSize()] ^= 0x40 })
	}},
	{"number of columns", func(v *vandal, f copyFrame) []byte {
		if !f.is("I") {
			return nil
		}
		return changed(f.raw, func(raw []byte) {
			count := raw[dataHead+1+v.xidSize()+4+1:]
			binary.BigEndian.PutUint16(count, binary.BigEndian.Uint16(count)+uint16(1-2*v.random.IntN(2)))
		})
	}},
	{"length of a value", func(v *vandal, f copyFrame) []byte {
		if !f.is("I") {
			return nil
		}
		return changed(f.raw, func(raw []byte) {
			binary.BigEndian.PutUint32(raw[dataHead+1+v.xidSize()+4+1+2+1:], []uint32{0x7fffffff, 0xffffffff, 0x40000000}[v.random.IntN(3)])
		})
	}},
	{"dropped", func(_ *vandal, f copyFrame) []byte {
		if !f.is("BCSER") {
			return nil
		}
		return []byte{}
	}},
	{"twice", func(_ *vandal, f copyFrame) []byte {
		if !f.is(boundaries) {
			return nil
		}
		return append(bytes.Clone(f.raw), f.raw...)
	}},
	{"whole transaction twice", func(v *vandal, f copyFrame) []byte {
		if !f.is("C") || len(v.since) == mostFrames {
			return nil
		}
		return append(bytes.Clone(f.raw), bytes.Join(v.since, nil)...)
	}},
	{"order", func(v *vandal, f copyFrame) []byte {
		if !f.is("BCSE") {
			return nil
		}
		v.held = bytes.Clone(f.raw)
		return []byte{}
	}},
	{"end of a transaction", func(v *vandal, f copyFrame) []byte {
		offset := map[byte]int{'C': 1 + 1 + 8, 'c': 1 + 4 + 1 + 8}[f.message()]
		if offset == 0 {
			return nil
		}
		return changed(f.raw, func(raw []byte) {
			binary.BigEndian.PutUint64(raw[dataHead+offset:], []uint64{0, 1, 1<<64 - 1, 1 << 40, v.random.Uint64()}[v.random.IntN(5)])
		})
	}},
	{"place of a commit", func(_ *vandal, f copyFrame) []byte {
		if !f.is("C") {
			return nil
		}
		return changed(f.raw, func(raw []byte) { raw[dataHead+1+1+7] ^= 8 })
	}},
	{"position of a message", func(v *vandal, f copyFrame) []byte {
		if !f.is("Cc") {
			return nil
		}
		return changed(f.raw, func(raw []byte) {
			binary.BigEndian.PutUint64(raw[frameHead+1:], []uint64{0, 1, 1<<64 - 1, v.random.Uint64()}[v.random.IntN(4)])
		})
	}},
	{"end and position going back", func(_ *vandal, f copyFrame) []byte {
		if !f.is("C") {
			return nil
		}
		return changed(f.raw, func(raw []byte) {
			final := binary.BigEndian.Uint64(raw[dataHead+2:])
			binary.BigEndian.PutUint64(raw[dataHead+2+8:], final-8)
			binary.BigEndian.PutUint64(raw[frameHead+1:], final-8)
		})
	}},
	{"position of a keepalive", func(v *vandal, f copyFrame) []byte {
		return keepaliveAt(f, []uint64{1<<64 - 1, 1<<64 - 2, 1 << 63, 1 << 40}[v.random.IntN(4)])
	}},
	{"keepalive in a transaction", func(v *vandal, f copyFrame) []byte {
		if !f.is("I") || v.inStream {
			return nil
		}
		// It would be right a moment later, after the commit.
		return append(keepaliveFrame(v.announced+1), f.raw...)
	}},
	{"length of a message", func(v *vandal, f copyFrame) []byte {
		return changed(f.raw, func(raw []byte) {
			binary.BigEndian.PutUint32(raw[1:], []uint32{0, 3, 1<<32 - 1, 1 << 31, 1<<31 - 1, 1<<30 + 5}[v.random.IntN(6)])
		})
	}},
	{"error", func(v *vandal, f copyFrame) []byte {
		code := []string{"58P01", "42704", "55000", "XX000", "57P01", "28P01", "08P01", "22021"}[v.random.IntN(8)]
		return append(serverError('E', code, "not today"), f.raw...)
	}},
	{"end of the stream", func(v *vandal, f copyFrame) []byte {
		end := [][]byte{serverMessage('c'), serverMessage('C', []byte("COPY 0\x00")...), serverMessage('Z', 'I')}[v.random.IntN(3)]
		return append(end, f.raw...)
	}},
	{"strange message", func(v *vandal, f copyFrame) []byte {
		kind := "TDG1KRWnt?\x00\xff"[v.random.IntN(12)]
		return append(serverMessage(kind, 0, 0, 0, 0), f.raw...)
	}},
	{"rubbish", func(v *vandal, f copyFrame) []byte {
		rubbish := make([]byte, 5+v.random.IntN(100))
		for i := range rubbish {
			rubbish[i] = byte(v.random.Uint32())
		}
		rubbish[0] |= 0x80 // no message has such a kind
		rubbish[1] |= 0x40 // nor such a length: a smaller one would be waited for
		return append(rubbish, f.raw...)
	}},
	{"stream block inside a transaction", func(v *vandal, f copyFrame) []byte {
		if !f.is("I") || v.inStream {
			return nil
		}
		block := append(f.withPayload([]byte{'S', 0, 0, 0, 9, 1}), f.withPayload([]byte{'E'})...)
		return append(block, f.raw...)
	}},
	{"commit of an unknown stream", func(v *vandal, f copyFrame) []byte {
		if !f.is("B") {
			return nil
		}
		commit := append([]byte{'c', 0, 0, 0, 9, 0}, f.payload[1:9]...)
		commit = append(append(commit, f.payload[1:9]...), make([]byte, 8)...)
		return append(f.withPayload(commit), f.raw...)
	}},
	{"row outside a transaction", func(v *vandal, f copyFrame) []byte {
		if !f.is("B") || v.insert == nil {
			return nil
		}
		return append(f.withPayload(v.insert), f.raw...)
	}},
	{"row of a stream in the next transaction", func(v *vandal, f copyFrame) []byte {
		if !f.is("E") {
			return nil
		}
		v.held = f.withPayload([]byte{'I', 0, 0, 0, 9, 0, 0, 0, 9, 'N', 0, 0})
		return f.raw
	}},
}

func keepaliveAt(f copyFrame, position uint64) []byte {
	if f.kind != 'k' {
		return nil
	}
	return changed(f.raw, func(raw []byte) { binary.BigEndian.PutUint64(raw[frameHead+1:], position) })
}

func keepaliveFrame(position uint64) []byte {
	body := binary.BigEndian.AppendUint64([]byte{'k'}, position)
	return serverMessage('d', append(body, make([]byte, 9)...)...)
}

var _ faultnet.Rewriter = (*vandal)(nil)

// xidSize is what a stream block adds to the frame of a change.
func (v *vandal) xidSize() int {
	if v.inStream {
		return 4
	}
	return 0
}

// Server damages a frame, if it is time.
func (v *vandal) Server(raw []byte) []byte {
	f, ok := parseCopy(raw)
	if !ok {
		return raw
	}
	v.follow(f)
	if v.held != nil {
		raw, v.held = append(bytes.Clone(raw), v.held...), nil
		return raw
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.sent = max(v.sent, lsn.LSN(binary.BigEndian.Uint64(f.raw[frameHead+1:])))
	switch {
	case v.way == nil:
	case v.wait > 0:
		v.wait--
	default:
		if damaged := v.way.damage(v, f); damaged != nil {
			v.way = nil
			close(v.fired)
			return damaged
		}
	}
	return raw
}

// follow keeps track of what the publisher really sends.
func (v *vandal) follow(f copyFrame) {
	switch f.message() {
	case 'S':
		v.inStream = true
	case 'E':
		v.inStream = false
	case 'B':
		v.since, v.announced = nil, binary.BigEndian.Uint64(f.payload[1:])
	case 'I':
		if !v.inStream {
			v.insert = bytes.Clone(f.payload)
		}
	}
	if len(v.since) < mostFrames {
		v.since = append(v.since, bytes.Clone(f.raw))
	}
}

const mostFrames = 1000

// Client compares what is acknowledged with what was sent.
func (v *vandal) Client(raw []byte) {
	if len(raw) < frameHead+1+8+8 || raw[frameHead] != 'r' {
		return
	}
	flushed := lsn.LSN(binary.BigEndian.Uint64(raw[frameHead+1+8:]))
	v.mu.Lock()
	defer v.mu.Unlock()
	if flushed > v.sent {
		v.overdrawn = flushed
	}
}
