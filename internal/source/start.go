package source

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/zap"

	"pgapply/internal/lsn"
)

// StreamOptions say what to stream. What the publisher's major does not know is
// lowered to what it does; Stream.Settings tells the outcome.
type StreamOptions struct {
	Slot string
	// Start is the end of the last commit that the target has. Zero stands for
	// the slot's confirmed position, and so does everything before that.
	Start lsn.LSN
	// Publications to receive, at least one.
	Publications []string
	// Streaming of transactions in progress: "off", "on" (14 and later) or
	// "parallel" (16 and later). Empty means off.
	Streaming string
	// TwoPhase makes the slot a two-phase one for good (15 and later). A slot
	// that already is sends prepared transactions without it too.
	TwoPhase bool
	// Binary asks for values in binary form (14 and later).
	Binary bool
	// Messages asks for logical messages (14 and later).
	Messages bool
	// Origin "none" leaves out changes that have a replication origin (16 and
	// later), "any" or empty does not.
	Origin string
	// StatusInterval is how often the publisher hears from us at least; zero
	// means 10 seconds. A quarter of its wal_sender_timeout goes before it.
	StatusInterval time.Duration
	// ReceiveTimeout is how long the publisher may be silent while the caller
	// waits in Receive; zero means 60 seconds. At half of it we ask.
	ReceiveTimeout time.Duration
}

const (
	defaultStatusInterval = 10 * time.Second
	defaultReceiveTimeout = 60 * time.Second
)

// Settings are the options that were chosen for a publisher's major.
type Settings struct {
	ProtocolVersion int
	Streaming       string // "off", "on" or "parallel"
	TwoPhase        bool
	Binary          bool
	Messages        bool
	Origin          string // "any" or "none"
	StatusInterval  time.Duration
	ReceiveTimeout  time.Duration
}

// settingsFor lowers options to what a publisher of this major accepts
// (pgoutput.c, parse_output_parameters, of each major).
func settingsFor(major int, options StreamOptions) (Settings, error) {
	switch {
	case options.Slot == "":
		return Settings{}, &ConfigurationError{Reason: "start the stream: no replication slot given"}
	case len(options.Publications) == 0:
		return Settings{}, &ConfigurationError{Reason: "start the stream: no publication given"}
	}
	settings := Settings{
		Streaming: "off", Origin: "any",
		TwoPhase: options.TwoPhase && major >= 15,
		Binary:   options.Binary && major >= 14, Messages: options.Messages && major >= 14,
		StatusInterval: options.StatusInterval, ReceiveTimeout: options.ReceiveTimeout,
	}
	switch {
	case major >= 16:
		settings.ProtocolVersion = 4
	case major == 15:
		settings.ProtocolVersion = 3
	case major == 14:
		settings.ProtocolVersion = 2
	default:
		settings.ProtocolVersion = 1
	}
	switch options.Streaming {
	case "", "off":
	case "on", "parallel":
		switch {
		case major >= 16:
			settings.Streaming = options.Streaming
		case major >= 14:
			settings.Streaming = "on"
		}
	default:
		return Settings{}, &ConfigurationError{Reason: fmt.Sprintf("start the stream: streaming %q is not one of off, on, parallel", options.Streaming)}
	}
	switch options.Origin {
	case "", "any":
	case "none":
		if major >= 16 {
			settings.Origin = "none"
		}
	default:
		return Settings{}, &ConfigurationError{Reason: fmt.Sprintf("start the stream: origin %q is not one of any, none", options.Origin)}
	}
	if settings.StatusInterval <= 0 {
		settings.StatusInterval = defaultStatusInterval
	}
	if settings.ReceiveTimeout <= 0 {
		settings.ReceiveTimeout = defaultReceiveTimeout
	}
	return settings, nil
}

// startCommand is START_REPLICATION. Options that are off are left out, since
// majors that do not know them refuse even their "off".
func startCommand(major int, options StreamOptions, settings Settings) string {
	names := make([]string, len(options.Publications))
	for i, name := range options.Publications {
		names[i] = identifier(name)
	}
	plugin := []string{fmt.Sprintf("proto_version '%d'", settings.ProtocolVersion)}
	if settings.Streaming != "off" {
		plugin = append(plugin, "streaming "+commandLiteral(settings.Streaming))
	}
	if settings.TwoPhase {
		plugin = append(plugin, "two_phase 'on'")
	}
	if major >= 16 {
		plugin = append(plugin, "origin "+commandLiteral(settings.Origin))
	}
	plugin = append(plugin, "publication_names "+commandLiteral(strings.Join(names, ",")))
	if settings.Binary {
		plugin = append(plugin, "binary 'true'")
	}
	if settings.Messages {
		plugin = append(plugin, "messages 'true'")
	}
	return fmt.Sprintf("START_REPLICATION SLOT %s LOGICAL %s (%s)", identifier(options.Slot), options.Start, strings.Join(plugin, ", "))
}

// StartStream starts to stream from a slot. A SlotBusyError, SlotMissingError
// or SlotLostError leaves the connection usable for commands and another try;
// when ctx ends first, the connection is lost.
func (c *Conn) StartStream(ctx context.Context, options StreamOptions) (*Stream, error) {
	settings, err := settingsFor(c.major(), options)
	if err != nil {
		return nil, err
	}
	if quarter := c.senderTimeout / 4; quarter > 0 {
		settings.StatusInterval = min(settings.StatusInterval, quarter)
	}
	if settings.Origin != options.Origin && options.Origin == "none" {
		c.log.Warn("the publisher cannot leave out changes that have an origin: that needs 16 or later", zap.Int("publisher_major", c.major()))
	}
	if err := c.startReplication(ctx, startCommand(c.major(), options, settings)); err != nil {
		return nil, c.startError(ctx, options.Slot, err)
	}
	stream, err := newStream(c, options.Start, settings)
	if err != nil {
		return nil, err
	}
	c.stream = stream
	return stream, nil
}

// startReplication sends the command and returns when the publisher has changed
// over to streaming. After an error of the server the connection is idle again.
func (c *Conn) startReplication(ctx context.Context, command string) error {
	c.pg.Frontend().SendQuery(&pgproto3.Query{String: command})
	if err := c.pg.Frontend().Flush(); err != nil {
		return errors.Join(err, c.Close())
	}
	var refusal error
	for {
		message, err := c.pg.ReceiveMessage(ctx)
		if err != nil {
			if refusal == nil && !is[*pgconn.PgError](err) {
				return errors.Join(err, c.Close())
			}
			return errors.Join(refusal, err)
		}
		switch message := message.(type) {
		case *pgproto3.CopyBothResponse:
			return nil
		case *pgproto3.ErrorResponse:
			refusal = pgconn.ErrorResponseToPgError(message)
		case *pgproto3.ReadyForQuery:
			if refusal == nil {
				refusal = errors.New("the publisher ended START_REPLICATION without streaming")
			}
			return refusal
		}
	}
}

// startError finds out what a refused START_REPLICATION means. The text of an
// error may be in any language, so the slot itself is asked.
func (c *Conn) startError(ctx context.Context, slot string, err error) error {
	server, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || c.pg.IsClosed() {
		return fmt.Errorf("start to stream from replication slot %q: %w", slot, err)
	}
	switch server.Code {
	case "55006":
		holder, _ := c.SlotHolder(ctx, slot) // only for the message
		return &SlotBusyError{Slot: slot, PID: pidIn(server.Message), Holder: holder, Err: err}
	case "42704":
		return &SlotMissingError{Slot: slot, Err: err}
	case "58P01":
		return &SlotLostError{Slot: slot, Reason: "wal_removed", Err: err}
	case "55000":
		if state, stateErr := c.Slot(ctx, slot); stateErr == nil && state != nil && state.Lost() != "" {
			return &SlotLostError{Slot: slot, Reason: state.Lost(), Err: err}
		}
		return &ConfigurationError{Reason: fmt.Sprintf("replication slot %q cannot be used from here", slot), Err: err}
	}
	return fmt.Errorf("start to stream from replication slot %q: %w", slot, err)
}
