// Package oracle compares pgapply with the native subscription on random schemas
// and workloads.
//
//	seed ──► Generate ──► Script ──► Arena.Play ──► equal, or a Failure
//	                        ▲                           │
//	                        └───────── Shrink ◄─────────┘
//
// A script is a list of statements, each with the session that runs it, so that a
// seed gives the same interleaving every time. It is played once on a publisher; a
// native subscription and several pgapply engines, each in another mode, apply what
// comes of it, and in the end all tables are the same everywhere. Rows that nobody
// replicated are among them, and the conflicts that are noted are the same as well. A
// script that fails is cut down to the smallest one that fails alike and printed in
// the format of the field examples, ready to become one.
//
// In a script of the second sort tables have rows on the publisher when they join, and
// all subscriptions copy them while the workload goes on.
//
// What the native subscription is known to do wrong is not generated; the places
// where something is left out for that reason begin with the word Native.
package oracle
