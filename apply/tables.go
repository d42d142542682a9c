package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"pgapply/apply/schema"
	"pgapply/apply/state"
	"pgapply/apply/tablesync"
	"pgapply/apply/target"
	"pgapply/internal/source"
)

// begins tells whether nothing was known of the subscription when an attempt first looked.
func (a *attempt) begins() bool { return a.found != nil && !a.found.Known }

// refuseTables refuses to begin with tables that cannot be copied: that the target lacks,
// that lack columns there, or that have rows. It comes before anything is changed on
// either end.
func (a *attempt) refuseTables(ctx context.Context) error {
	if !a.options.CopyData || !a.begins() {
		return nil
	}
	if err := a.refuseMisfits(ctx); err != nil {
		return err
	}
	return a.refuseRows(ctx)
}

// refuseMisfits lists every table and column that the target lacks. Missing tables are
// no matter where they are to be created.
func (a *attempt) refuseMisfits(ctx context.Context) error {
	published, err := a.published(ctx)
	if err != nil {
		return err
	}
	compared, err := schema.Compare(ctx, a.control.conn, published)
	if err != nil {
		return TargetError(err)
	}
	err = schema.Misfits(compared, a.options.CopySchema || a.options.MissingTable == "skip")
	if misfits, ok := errors.AsType[*schema.MisfitError](err); ok {
		return &Error{Class: Refused, Err: err, Hint: misfits.Hint()}
	}
	return err
}

// published describes the wanted tables, with names in UTF-8 as the control session has
// them.
func (a *attempt) published(ctx context.Context) ([]source.Published, error) {
	publisher, err := source.Connect(ctx, source.Options{
		URI: a.options.Source, Passfile: a.options.SourcePassfile, ApplicationName: a.options.Name + ":look", Log: a.log,
	})
	if err != nil {
		return nil, SourceError(err)
	}
	published, err := publisher.Published(ctx, a.options.Publications)
	if err = errors.Join(err, publisher.Close()); err != nil {
		return nil, SourceError(err)
	}
	return slices.DeleteFunc(published, func(p source.Published) bool { return !a.options.Tables.Has(p.Schema, p.Name) }), nil
}

// refuseRows refuses tables that have rows on the target already, unless it was said what
// becomes of them.
func (a *attempt) refuseRows(ctx context.Context) error {
	if !a.options.CreateSlot || a.options.IfNotEmpty == "append" {
		return nil
	}
	tables, err := a.wantedTables(ctx)
	if err != nil {
		return SourceError(err)
	}
	session, err := target.Open(ctx, target.Options{
		URI: a.options.Target, Passfile: a.options.TargetPassfile, ApplicationName: a.options.Name + ":look", SynchronousCommit: "off",
		Fires: a.control.terms.Fires, Log: a.log,
	})
	if err != nil {
		return TargetError(err)
	}
	defer session.Close()
	defer context.AfterFunc(ctx, session.Close)()
	filled, err := tablesync.NotEmpty(session, a.toCopy(tables))
	if err != nil {
		return TargetError(err)
	}
	if len(filled) == 0 {
		return nil
	}
	var names []string
	for _, f := range filled {
		names = append(names, fmt.Sprintf("%s (%s)", f.Table, f.Estimate()))
	}
	list := strings.ToValidUTF8(strings.Join(names, ", "), "?")
	switch {
	case a.options.IfNotEmpty == "truncate" && a.options.Confirmed:
		a.log.Warn("the rows that the target has are removed: " + list)
		return nil
	case a.options.IfNotEmpty == "truncate":
		return refused("repeat with --yes", "--if-not-empty truncate removes rows from these tables of the target: %s", list)
	}
	return refused("empty them, or say --if-not-empty truncate --yes to have that done, --if-not-empty append to keep their rows beside the copied ones, "+
		"or --copy-data=false if they hold the publisher's rows already", "tables that are to be copied are not empty on the target: %s", list)
}

// createTables creates what the target lacks of the tables that are still to be copied.
// One that took part and was dropped there since stays away: it would come back without
// its rows.
func (a *attempt) createTables(ctx context.Context) error {
	if !a.options.CopySchema {
		return nil
	}
	published, err := a.published(ctx)
	if err != nil {
		return err
	}
	begun, err := a.control.store.Begun(ctx)
	if err != nil {
		return TargetError(err)
	}
	var tables []source.Table
	for i := range published {
		if !slices.Contains(begun, state.Member(published[i].Table)) {
			tables = append(tables, published[i].Table)
		}
	}
	_, err = schema.Create(ctx, schema.Options{
		Name: a.options.Name, Source: a.options.Source, Target: a.options.Target,
		SourcePassfile: a.options.SourcePassfile, TargetPassfile: a.options.TargetPassfile, Log: a.log,
	}, tables)
	return schemaError(err)
}

// schemaError classifies what kept tables from being created.
func schemaError(err error) error {
	if err == nil {
		return nil
	}
	if program, ok := errors.AsType[*schema.ProgramError](err); ok {
		return &Error{Class: Refused, Err: err, Hint: program.Hint}
	}
	if statement, ok := errors.AsType[*schema.StatementError](err); ok {
		return &Error{Class: Target, Err: err, Hint: statement.Hint}
	}
	if source.ClassOf(err) != source.Other {
		return SourceError(err)
	}
	return TargetError(err)
}
