// Package config settles what each setting of a command is, from where people may have
// said it:
//
//	command line  >  environment  >  file  >  default
//
// A setting is known by one name everywhere: --max-group-rows, PGAPPLY_MAX_GROUP_ROWS,
// and in the file
//
//	max-group-rows: 1000
//
// Nothing that is written is passed over in silence: what is wrong is reported with its
// place, and all of it at once. What values mean, and what a command line is, is not
// known here: a [Setting] takes text.
package config
