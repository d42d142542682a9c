package source

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/internal/lsn"
)

// Ended is a timeline of a server and where its log goes over into that of the next.
type Ended struct {
	Timeline int32
	At       lsn.LSN
}

// History is the timelines that a server's log went through before the one it is on,
// oldest first. It is empty on the first timeline, and where the server does not know it
// any more.
type History []Ended

// String has the form that ParseHistory reads.
func (h History) String() string {
	parts := make([]string, len(h))
	for i, ended := range h {
		parts[i] = fmt.Sprintf("%d %s", ended.Timeline, ended.At)
	}
	return strings.Join(parts, ", ")
}

// ParseHistory reads what String has written.
func ParseHistory(text string) (History, error) {
	if text == "" {
		return nil, nil
	}
	var history History
	for part := range strings.SplitSeq(text, ", ") {
		ended, err := parseEnded(strings.Split(part, " "))
		if err != nil {
			return nil, fmt.Errorf("history of timelines %q: %w", text, err)
		}
		history = append(history, ended)
	}
	return history, nil
}

// history asks for the timelines before one. A server that has lost the file does not
// know them: that is no error here.
func (c *Conn) history(ctx context.Context, timeline int32) (History, error) {
	if timeline <= 1 {
		return nil, nil
	}
	rows, err := c.Query(ctx, fmt.Sprintf("TIMELINE_HISTORY %d", timeline))
	if refusal, ok := errors.AsType[*pgconn.PgError](err); ok && refusal.Code == "58P01" {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the history of timeline %d: %w", timeline, err)
	}
	history, err := parseHistoryFile(text(rows, 0, 1))
	if err != nil {
		return nil, fmt.Errorf("read the history of timeline %d: %w", timeline, err)
	}
	return history, nil
}

// parseHistoryFile reads a timeline history file: on each line a timeline, where it
// ended, and why, apart by white space (timeline.c, readTimeLineHistory).
func parseHistoryFile(content string) (History, error) {
	var history History
	for line := range strings.Lines(content) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		ended, err := parseEnded(fields[:min(2, len(fields))])
		if err != nil {
			return nil, err
		}
		history = append(history, ended)
	}
	return history, nil
}

func parseEnded(fields []string) (Ended, error) {
	if len(fields) != 2 {
		return Ended{}, errors.New("a timeline and a position are wanted")
	}
	timeline, err := strconv.ParseInt(fields[0], 10, 32)
	if err != nil {
		return Ended{}, errors.New("a timeline is not a number")
	}
	at, err := lsn.Parse(fields[1])
	if err != nil {
		return Ended{}, err
	}
	return Ended{Timeline: int32(timeline), At: at}, nil
}
