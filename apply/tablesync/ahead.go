package tablesync

import (
	"errors"
	"io"
	"sync"

	"pgapply/internal/source"
)

const (
	// chunkSize is how much is handed on at once, and chunks how many there are: so that
	// one end may rest a while without the other noticing.
	chunkSize = 128 << 10
	chunks    = 4
)

// chunk is a piece of the publisher's data. Its buffer belongs to whoever holds it.
type chunk struct {
	data []byte
	rows int64
	err  error
}

// ahead reads a COPY of the publisher ahead of the target's. Read and finish are for one
// goroutine each, which may be two.
type ahead struct {
	reader *source.TableReader
	full   chan chunk
	free   chan []byte
	// stop is closed when nobody wants any more, done when the reading has ended.
	stop, done chan struct{}
	once       sync.Once
	// cause is why it has: io.EOF when the data were complete, errNoMore when nobody wanted
	// them. It is set before done is closed.
	cause error

	// What Read is passing on.
	current chunk
	rest    []byte
	// passed hears of it.
	passed func(rows, bytes int64)
}

var errNoMore = errors.New("the copy is given up")

// readAhead starts to read what the reader was told to copy, into buffers that an earlier
// one has left; they are its own until finish returns.
func readAhead(reader *source.TableReader, buffers [][]byte, passed func(rows, bytes int64)) *ahead {
	a := &ahead{
		reader: reader, passed: passed, full: make(chan chunk, chunks), free: make(chan []byte, chunks),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	for i := range chunks {
		if i < len(buffers) {
			a.free <- buffers[i]
		} else {
			a.free <- nil // made when it is needed
		}
	}
	go a.run()
	return a
}

func (a *ahead) run() {
	defer close(a.done)
	a.cause = a.carry()
}

func (a *ahead) carry() error {
	var before int64
	for {
		var buffer []byte
		select {
		case buffer = <-a.free:
		case <-a.stop:
			return errNoMore
		}
		if buffer == nil {
			buffer = make([]byte, chunkSize)
		}
		n, err := a.reader.Read(buffer[:chunkSize])
		messages := a.reader.Messages()
		next := chunk{data: buffer[:n], rows: messages - before, err: err}
		before = messages
		select {
		case <-a.stop: // so err may be of our making
			return errNoMore
		default:
		}
		select {
		case a.full <- next:
		case <-a.stop:
			return errNoMore
		}
		if err != nil {
			return err
		}
	}
}

// Read implements io.Reader. An error other than io.EOF does not tell the reason, since
// it is quoted to the target.
func (a *ahead) Read(p []byte) (int, error) {
	for len(a.rest) == 0 {
		if errors.Is(a.current.err, io.EOF) {
			return 0, io.EOF
		}
		if a.current.err != nil {
			return 0, errNoMore
		}
		if a.current.data != nil {
			a.free <- a.current.data // there is room for all of them
		}
		select {
		case a.current = <-a.full:
		case <-a.stop:
			return 0, errNoMore
		}
		a.rest = a.current.data
		a.passed(a.current.rows, int64(len(a.rest)))
	}
	n := copy(p, a.rest)
	a.rest = a.rest[n:]
	return n, nil
}

// giveUp makes Read return, without waiting for anything. It may be called by anybody.
func (a *ahead) giveUp() { a.once.Do(func() { close(a.stop) }) }

// finish waits for the reading to end, which it breaks off with the publisher's
// connection unless the data are complete, and returns why it ended.
func (a *ahead) finish(complete bool) error {
	if !complete {
		a.giveUp()
		a.reader.Abort()
	}
	<-a.done
	return a.cause
}

// buffers returns those that were made, for another one. It may be called once the data
// were complete, when nobody reads any more.
func (a *ahead) buffers() [][]byte {
	made := [][]byte{a.current.data}
	for range len(a.free) {
		if buffer := <-a.free; buffer != nil {
			made = append(made, buffer)
		}
	}
	return made
}
