package apply

import (
	"errors"
	"fmt"
	"strings"
)

// Class says who has to act on an error. Each class is one exit code of the
// command, and decides whether the engine retries.
type Class uint8

// The classes of errors.
const (
	// Other is an error that fits no other class.
	Other Class = iota
	// Configuration: an option, a URI or a combination of them is wrong.
	Configuration
	// Refused: the preflight or the recorded state forbids to go on.
	Refused
	// Source: the publisher cannot be reached or refuses us.
	Source
	// Target: the target cannot be reached or refuses us.
	Target
	// Conflict: a transaction cannot be applied until a person has acted.
	Conflict
	// SlotLost: the slot is gone, invalid, or past what the target holds. Only
	// a new copy can help.
	SlotLost
)

// Error is what the engine returns: the class, what happened, and what to do.
type Error struct {
	Class Class
	Err   error
	// Hint is the remedy, one sentence, or empty.
	Hint string
	// Retryable marks an error that time alone can cure: a refused connection,
	// a server that is shutting down, a slot that somebody else still holds.
	Retryable bool
	// Final marks one that ends the engine also when it has streamed before.
	Final bool
}

// Error is always text that logs and the state can hold.
func (e *Error) Error() string { return printable(e.Err.Error()) }

// printable makes text for logs and the state of a server's words, and the names in them,
// which may come in another encoding, or be what a broken stream has in their place: valid
// UTF-8 without zero bytes, which no text of a database has.
func printable(text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(text, "?"), "\x00", "?")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ClassOf returns the class of the outermost Error in err's chain, or Other.
func ClassOf(err error) Class {
	if typed, ok := errors.AsType[*Error](err); ok {
		return typed.Class
	}
	return Other
}

// HintOf returns the remedy in err's chain, or the empty string.
func HintOf(err error) string {
	if typed, ok := errors.AsType[*Error](err); ok {
		return typed.Hint
	}
	return ""
}

func refused(hint, format string, arguments ...any) *Error {
	return &Error{Class: Refused, Err: fmt.Errorf(format, arguments...), Hint: hint}
}
