// What a process asks of the kernel about its end: children die with their parent, however the parent ends, and signals
// end what they should and nothing else.
#pragma once

#include <sys/types.h>

#include <csignal>

namespace stemma {

// Called by a child, first thing: the kernel sends `signal` when the parent ends, and the process exits at once (status
// 1) if that has happened already. `parent` is the pid that the parent knows itself by, taken before the fork.
//
// The kernel's parent is the *thread* that forked: a launcher forks from a thread that lives as long as it does. Holds
// across exec.
void DieWithParent(pid_t parent, int signal = SIGTERM);

// Returns the signals that ask a process to stop: SIGTERM, SIGINT, and SIGHUP, which a terminal and some supervisors
// send, unless the process was started to ignore that one, as by nohup.
sigset_t StopSignals();

// Makes SIGTERM, SIGINT and SIGHUP end the first process of a PID namespace, as a container's often is, with 128 plus
// the signal's number: the kernel drops whatever signal such a process has no handler for. One that it was started to
// ignore stays ignored. Does nothing in any other process, which these signals end by themselves. Does not hold across
// exec.
void EndAtSignalsAsFirstProcess();

// A write to a pipe or socket whose other end has gone is an error like another, and no longer ends the process
// (SIGPIPE).
void IgnorePipeSignal();

// A file that grows past the process's limit gives EFBIG, an error like another, and no longer ends the process
// (SIGXFSZ).
void IgnoreFileSizeSignal();

}  // namespace stemma
