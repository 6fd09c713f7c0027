// Whether disks were what held the run up.
#include "report/rule_text.h"
#include "report/sections.h"
#include "report/system_charts.h"

namespace dtrain::analysis::report {

void write_io_bottlenecks(Page& page, const Input& input) {
  page.begin_section("io-bottlenecks", "I/O bottlenecks");
  write_rule(page, input, "IOBottleneck");
  write_rule(page, input, "DiskRate");
  Json wait = host_series(input, {{"io_wait", "waiting for a disk"}}, "of all cores", "percent");
  if (wait.is_null()) {
    page.absent("No figures about disks.", "No agent took a sample.", "A run of a second or more has some.");
    return;
  }
  page.begin_columns();
  page.chart({.id = "io-wait",
              .title = "Waiting for a disk",
              .text = "The share of time in which cores had nothing to do but that.",
              .spec = std::move(wait),
              .height = 200});
  if (Json requests = host_series(input, {{"disk_iops", "requests"}}, "requests a second", ""); !requests.is_null()) {
    page.chart({.id = "disk-requests",
                .title = "Requests to disks",
                .text = "Completed reads and writes. Many small ones are slow where few large ones would not be.",
                .spec = std::move(requests),
                .height = 200});
  }
  page.end_columns();
}

}  // namespace dtrain::analysis::report
