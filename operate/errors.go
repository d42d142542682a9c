package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/source"
)

func refused(hint, format string, arguments ...any) *apply.Error {
	return &apply.Error{Class: apply.Refused, Err: fmt.Errorf(format, arguments...), Hint: hint}
}

// hinter is an error of package state that knows its remedy.
type hinter interface {
	error
	Hint() string
}

// targetError gives an error from the target its class.
func targetError(err error) *apply.Error {
	typed := &apply.Error{Class: apply.Target, Err: err}
	if remedy, ok := errors.AsType[hinter](err); ok {
		typed.Hint = remedy.Hint()
	}
	server, isServer := errors.AsType[*pgconn.PgError](err)
	switch {
	case is[*state.ConnectionStringError](err):
		typed.Class = apply.Configuration
		typed.Hint = "correct --target, or the PG* variables and files that it relies on"
	case is[*state.VersionError](err), is[*state.OwnerError](err), is[*state.PrivilegeError](err):
		typed.Class = apply.Refused
	case errors.Is(err, context.Canceled):
	case !isServer:
		typed.Retryable = true
		typed.Hint = "check that the target runs and that --target names its address"
	case strings.HasPrefix(server.Code, "28"):
		typed.Hint = "check the user, its password and pg_hba.conf on the target"
	case server.Code == "3D000":
		typed.Hint = "check the database that --target names"
	case strings.HasPrefix(server.Code, "08"), strings.HasPrefix(server.Code, "57P"), server.Code == "53300":
		typed.Retryable = true
	}
	return typed
}

// sourceError gives an error from the publisher its class.
func sourceError(err error) *apply.Error {
	typed := &apply.Error{Class: apply.Source, Err: err}
	switch source.ClassOf(err) {
	case source.Transient:
		typed.Retryable = true
		typed.Hint = "check that the publisher runs and that --source names its address"
	case source.Configuration:
		typed.Class = apply.Configuration
		typed.Hint = "correct --source, or the publisher's set-up"
	case source.Authentication:
		typed.Hint = "check the user, its password and pg_hba.conf on the publisher"
	case source.SlotLost, source.Other:
	}
	return typed
}

func is[T error](err error) bool {
	_, ok := errors.AsType[T](err)
	return ok
}
