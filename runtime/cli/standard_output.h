// What becomes of standard output: a command whose answer could not be written has failed, whatever it found out.
// Needs no CLI11. One thread.
#pragma once

namespace dtrain::cli {

// At the end of main(): writes what is buffered and returns the exit code. Where something that was printed could not
// be written (a full disk), says so on standard error and makes success kRunFailed. A reader that has gone away
// (`dtrain task list | head -1`) is no error.
int finish_output(int exit_code);

// The same for a command whose result is not what it prints: a warning alone, and the exit code stays its own.
void warn_of_lost_output();

}  // namespace dtrain::cli
