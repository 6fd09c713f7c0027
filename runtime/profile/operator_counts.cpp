#include "dtrain/profile/operator_counts.h"

#include <spdlog/fmt/fmt.h>

namespace dtrain::profile {

std::string operators_file_name(int rank) {
  return fmt::format("operators-rank-{:04}.json", rank);
}

Json to_json(const OperatorCounts& counts) {
  Json rows = Json::array();
  for (const OperatorCount& one : counts.operators) {
    Json row = {{"name", one.name}, {"dtype", one.dtype}};
    if (!one.format.empty()) row["format"] = one.format;
    row.update({{"shapes", one.shapes}, {"calls", one.calls}, {"flops", one.flops}, {"bytes", one.bytes}});
    row["seconds"] = one.seconds ? Json(*one.seconds) : Json(nullptr);
    rows.push_back(std::move(row));
  }
  return {{"schema", kOperatorCountsSchema},
          {"rank", counts.rank},
          {"host", counts.host},
          {"device", counts.device},
          {"threads", counts.threads},
          {"batch", counts.batch},
          {"samples", counts.samples},
          {"counted_batches", counts.counted},
          {"flops_per_sample", counts.flops_per_sample},
          {"dtype", counts.dtype},
          {"operators", std::move(rows)}};
}

}  // namespace dtrain::profile
