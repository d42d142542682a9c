package apply

import (
	"time"

	"go.uber.org/zap"

	"pgapply/apply/state"
	"pgapply/apply/tablesync"
)

// reportPause is how often the log says how far a copy is.
const reportPause = 10 * time.Second

// copying puts a copy into the status, or with nil takes it out.
func (e *Engine) copying(progress *tablesync.Progress) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.copy = progress
}

// CopyStatus sums up how far a copy is; nil where there is none.
func CopyStatus(progress *tablesync.Progress) *state.Copy {
	if progress == nil {
		return nil
	}
	tables := progress.Tables()
	status := &state.Copy{Share: tablesync.Share(tables)}
	for i := range tables {
		table := &tables[i]
		status.Tables++
		status.Rows += table.Rows
		status.Bytes += table.Bytes
		status.EstimatedRows += estimate(table)
		switch {
		case table.Err != nil:
			status.Failed++
		case table.Started.IsZero():
		case !table.Finished.IsZero():
			status.Done++
		default:
			status.Running = append(status.Running, state.CopyTable{
				Table: printable(table.Schema + "." + table.Name), Rows: table.Rows, Bytes: table.Bytes,
				EstimatedRows: estimate(table), Share: table.Share(), Parts: table.Parts, PartsDone: table.PartsDone,
			})
		}
		if !table.Started.IsZero() && (status.Since.IsZero() || table.Started.Before(status.Since)) {
			status.Since = table.Started
		}
	}
	return status
}

// estimate is how many rows a table has, as far as is known by now.
func estimate(table *tablesync.TableProgress) int64 {
	if !table.Finished.IsZero() {
		return table.Rows
	}
	return max(table.EstimatedRows, table.Rows)
}

// showCopy shows how far a copy is, until the returned function is called.
func (a *attempt) showCopy(tables int, progress *tablesync.Progress) (ended func()) {
	a.log.Info("copying tables", zap.Int("tables", tables), zap.Int("jobs", a.options.TableJobs))
	if a.options.ShowCopy != nil {
		return a.options.ShowCopy(progress)
	}
	return logCopy(a.log, progress)
}

// logCopy logs how far a copy is, until the returned function is called, which logs how
// it ended.
func logCopy(log *zap.Logger, progress *tablesync.Progress) (ended func()) {
	began, stop, done := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(reportPause)
		defer ticker.Stop()
		for {
			select {
			case now := <-ticker.C:
				status := CopyStatus(progress)
				log.Info("copying tables", zap.Int("done", status.Done), zap.Int("of", status.Tables), zap.Int64("rows", status.Rows),
					zap.Int64("estimated_rows", status.EstimatedRows), zap.Int64("bytes", status.Bytes),
					zap.Int64("bytes_per_second", int64(status.Rate(now))), zap.Duration("left", status.Left(now).Round(time.Second)))
			case <-stop:
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-done
		tables := progress.Tables()
		for i := range tables {
			if table := &tables[i]; table.Err == nil && !table.Finished.IsZero() {
				log.Info("copied a table", zap.String("table", printable(table.Schema+"."+table.Name)), zap.Int64("rows", table.Rows),
					zap.Int64("bytes", table.Bytes), zap.Float64("seconds", table.Finished.Sub(table.Started).Seconds()))
			}
		}
		status := CopyStatus(progress)
		log.Info(copyEnd(status), zap.Int("done", status.Done), zap.Int("of", status.Tables), zap.Int64("rows", status.Rows),
			zap.Int64("bytes", status.Bytes), zap.Float64("seconds", time.Since(began).Seconds()))
	}
}

// copyEnd says how a copy ended.
func copyEnd(status *state.Copy) string {
	if status.Done < status.Tables {
		return "the copy of tables ended before all of them were copied"
	}
	return "copied tables"
}
