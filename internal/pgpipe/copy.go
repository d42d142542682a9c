package pgpipe

import (
	"bufio"
	"encoding/binary"
	"io"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// COPY .. FROM STDIN within the pipeline. Its data follow its execution without waiting
// for the server's word that it is ready, which is all that tells a COPY apart from other
// statements: if it fails, or something before it has, the server ignores the data like
// everything else up to the next Sync (protocol.sgml, "COPY Operations"). pgconn knows no
// COPY in a pipeline, so that word does not reach it: see withoutCopyIn.

// copyChunk is how much of the data is one message.
const copyChunk = 64 << 10

// Configure prepares a connection for Copy. It comes before pgconn.ConnectConfig.
func Configure(config *pgconn.Config) {
	config.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		return pgproto3.NewFrontend(&withoutCopyIn{from: bufio.NewReaderSize(r, 16<<10)}, w)
	}
}

// Copy queues one execution of a prepared COPY .. FROM STDIN with all of its data, which
// are copied before it returns. The connection's configuration must come from Configure.
func (p *Pipe[T]) Copy(token T, name string, data []byte) error {
	if p.lost != nil {
		return p.lost
	}
	p.pipeline.SendQueryPrepared(name, nil, nil, nil)
	frontend := p.conn.Frontend()
	for len(data) > 0 {
		n := min(len(data), copyChunk)
		frontend.Send(&pgproto3.CopyData{Data: data[:n]})
		data = data[n:]
		p.unflushed += n
		if p.unflushed >= flushAt {
			// Not Flush: there is nothing to answer yet.
			if err := p.flush(); err != nil {
				return err
			}
		}
	}
	frontend.Send(&pgproto3.CopyDone{})
	p.push(request[T]{token}, 32)
	return nil
}

// withoutCopyIn reads a server's messages and leaves out each CopyInResponse.
type withoutCopyIn struct {
	from *bufio.Reader
	// left is what is to come of the message that is passed on.
	left int
}

// Read passes on whole headers, and of bodies what there is.
func (f *withoutCopyIn) Read(p []byte) (int, error) {
	const header = 5 // a type and a length, which counts itself
	for f.left == 0 {
		next, err := f.from.Peek(header)
		if err != nil {
			if err == io.EOF && len(next) > 0 { //nolint:errorlint // Peek returns it bare
				err = io.ErrUnexpectedEOF
			}
			return 0, err
		}
		size := 1 + int(binary.BigEndian.Uint32(next[1:]))
		if next[0] != 'G' {
			f.left = max(size, header) // what is wrong with it is the reader's to say
			break
		}
		if _, err := f.from.Discard(size); err != nil {
			return 0, err
		}
	}
	n, err := f.from.Read(p[:min(len(p), f.left)])
	f.left -= n
	return n, err
}
