#include "data_sets.h"

#include <algorithm>
#include <utility>

#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include "device/device_feed.h"
#include "dtrain/base/error.h"
#include "dtrain/config/experiment.h"
#include "dtrain/data/formats.h"
#include "dtrain/host/cpu.h"
#include "dtrain/rank/rank_session.h"

namespace dtrain::python {
namespace {

config::ModelData data_of(const Json& keys, const std::string& folder) {
  const std::vector<std::string> of_source = config::keys_of_sources();
  Json section = Json::object(), source = Json::object();
  for (const auto& [key, value] : keys.items()) {
    const bool is_of_source = std::find(of_source.begin(), of_source.end(), key) != of_source.end();
    (is_of_source ? source : section)[key] = value;
  }
  section["training"] = std::move(source);
  return config::read_data_section(section, folder);
}

Loader loader_of(const config::ModelData& data, const LoaderPlace& place, int ranks_of_host,
                 const data::HostShare& share) {
  if (place.batch_size < place.world_size || place.batch_size % place.world_size != 0) {
    throw ConfigError("batch_size is " + std::to_string(place.batch_size) + ", which does not divide among " +
                          std::to_string(place.world_size) + " ranks",
                      "give a multiple of their number");
  }
  const config::LoaderKeys& keys = data.loader;
  data::LoaderOptions options;
  options.batch_size = place.batch_size / place.world_size;
  options.rank = place.rank;
  options.world_size = place.world_size;
  options.shuffle = keys.shuffle;
  options.drop_last = keys.drop_last;
  options.seed = place.seed;
  options.workers = keys.workers;
  options.prefetch = keys.prefetch;
  options.free_cores = static_cast<double>(host::allowed_cpus().size()) - at::get_num_threads();
  options.skip_damaged = keys.on_error == config::OnDamage::kSkip;
  options.max_skipped = keys.max_skipped;
  options.shuffle_window = keys.shuffle_window << 20;
  options.timeout = place.timeout;
  options.ranks_of_host = ranks_of_host;
  if (keys.pin && at::globalContext().hasCUDA()) options.allocate = train::pinned_allocator();
  return make_loader(
      data::open_source(data.format, data.training, config::transforms_of(data.transforms.training), share), options);
}

}  // namespace

Loader open_loader(const Json& keys, const std::string& folder, const LoaderPlace& place) {
  return loader_of(data_of(keys, folder), place, place.world_size, data::no_sharing());
}

Loader open_data_set(TrialContext& context, const Json& keys, const std::string& folder, std::int64_t batch_size) {
  const config::Experiment& experiment = context.session().experiment();
  LoaderPlace place{batch_size, context.rank(), context.world_size(), experiment.experiment_seed, {}};
  // The timeout is a little shorter than that of the other ranks for this rank, so that the run ends with the cause.
  place.timeout = experiment.communication_timeout * 9 / 10;
  return loader_of(data_of(keys, folder), place, context.session().world().local_size, context.host_share());
}

}  // namespace dtrain::python
