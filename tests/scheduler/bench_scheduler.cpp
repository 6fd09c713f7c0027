// bench_scheduler [--json]: how long the scheduler takes on a large cluster and with a long history. The goals are
// under 50 ms for each placement on 10,000 agents, and for `dtrain task list` with 10,000 tasks that have ended.
#include "bench_scheduler.h"

#include <cstdio>
#include <cstring>
#include <exception>

#include "dtrain/base/error.h"

int main(int argc, char** argv) try {
  dtrain::Json result = dtrain::Json::object();
  result.update(dtrain::scheduler::measure_placement());
  result.update(dtrain::scheduler::measure_task_list());
  if (argc > 1 && std::strcmp(argv[1], "--json") == 0) {
    std::printf("%s\n", dtrain::to_line(result).c_str());
  } else {
    for (const auto& [name, value] : result.items()) std::printf("%-28s %10s\n", name.c_str(), value.dump().c_str());
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench_scheduler: %s\n", dtrain::describe(error).c_str());
  return 1;
}
