// dtrain's data sets for Python: threads of the engine read and transform them, and Python gets them without a copy.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "bindings.h"
#include "device/device_feed.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "dtrain/config/experiment.h"
#include "dtrain/data/formats.h"
#include "dtrain/host/cpu.h"
#include "dtrain/rank/rank_session.h"
#include "values.h"

namespace dtrain::python {
namespace {

namespace py = pybind11;

// The settings of a loader that the keys of an experiment's `data` section do not have.
struct LoaderPlace {
  std::int64_t batch_size = 1;  // samples of all ranks together; divisible by their number
  int first_rank = 0;
  int end_rank = 1;  // behind the last
  int world_size = 1;
  std::uint64_t seed = 0;
  std::chrono::nanoseconds timeout{0};  // 0: next() waits for ever
  bool predicts = false;                // each batch goes to one rank as a whole
};

// `keys`: those of an experiment's `data` section, with those of the source beside the others instead of under
// `training`: {"format": "image_folder", "folder": "photos", "transforms": […], "workers": 4}. Relative paths start
// from `folder`. ConfigError names the wrong key.
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

// Returns a loader of each rank of the place. They read one source, which is opened once.
std::vector<Loader> loaders_of(const config::ModelData& data, const LoaderPlace& place, int ranks_of_host,
                               const data::HostShare& share) {
  const bool divides = place.batch_size >= place.world_size && place.batch_size % place.world_size == 0;
  if (!place.predicts && !divides) {
    throw ConfigError("batch_size is " + std::to_string(place.batch_size) + ", which does not divide among " +
                          std::to_string(place.world_size) + " ranks",
                      "give a multiple of their number");
  }
  const config::LoaderKeys& keys = data.loader;
  data::LoaderOptions options;
  options.batch_size = place.predicts ? place.batch_size : place.batch_size / place.world_size;
  options.world_size = place.world_size;
  options.shuffle = keys.shuffle;
  options.drop_last = keys.drop_last;
  options.seed = place.seed;
  options.workers = keys.workers;
  options.prefetch = keys.prefetch;
  options.free_cores =
      (static_cast<double>(host::allowed_cpus().size()) - at::get_num_threads()) / (place.end_rank - place.first_rank);
  options.skip_damaged = keys.on_error == config::OnDamage::kSkip;
  options.max_skipped = keys.max_skipped;
  options.shuffle_window = keys.shuffle_window << 20;
  options.timeout = place.timeout;
  options.ranks_of_host = ranks_of_host;
  if (place.predicts) options.take_all_in_order();
  if (keys.pin && at::globalContext().hasCUDA()) options.allocate = train::pinned_allocator();
  const auto source =
      data::open_source(data.format, data.training, config::transforms_of(data.transforms.training), share);
  std::vector<Loader> loaders;
  for (options.rank = place.first_rank; options.rank < place.end_rank; ++options.rank) {
    loaders.push_back(make_loader(source, options));
  }
  return loaders;
}

// Opens a loader in a process without a run.
Loader open_loader(py::handle keys, const std::string& folder, std::int64_t batch_size, int rank, int world_size,
                   std::uint64_t seed, double timeout) {
  const auto waits = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(timeout));
  const Json json = json_from(keys);
  const py::gil_scoped_release unlocked;
  const LoaderPlace place{batch_size, rank, rank + 1, world_size, seed, waits};
  return loaders_of(data_of(json, folder), place, world_size, data::no_sharing()).front();
}

// Opens the batches of the logical ranks of this rank of a run; without virtual ranks it is this one. A host has data
// in memory once. `batch_size`: of all ranks. Collective.
std::vector<Loader> open_data_set(TrialContext& context, py::handle keys, const std::string& folder,
                                  std::int64_t batch_size) {
  const Json json = json_from(keys);
  const py::gil_scoped_release unlocked;
  const config::Experiment& experiment = context.session().experiment();
  // The timeout is a little shorter than that of the other ranks for this rank, so that the run ends with the cause.
  const rank::LogicalRanks& ranks = context.session().logical();
  const LoaderPlace place{batch_size,
                          ranks.begin,
                          ranks.end,
                          ranks.size,
                          experiment.experiment_seed,
                          experiment.communication_timeout * 9 / 10,
                          !context.session().predictions().empty()};
  return loaders_of(data_of(json, folder), place, context.session().world().local_size, context.host_share());
}

}  // namespace

void add_data_sets(py::module_& module) {
  py::class_<BatchSource, Loader>(module, "Loader")
      .def_property_readonly("length", &BatchSource::batches_per_epoch)
      .def_property_readonly("left", &BatchSource::batches_left)
      .def_property_readonly("samples", &BatchSource::samples_per_epoch)
      .def_property_readonly("workers", &BatchSource::workers)
      .def("start", &BatchSource::start_epoch_at, Unlocked())
      .def("position", &BatchSource::position)
      .def("go_on_from", &BatchSource::go_on_from, Unlocked())
      .def("next", [](BatchSource& source) -> py::object {
        std::optional<Batch> batch;
        {
          const py::gil_scoped_release unlocked;
          batch = source.next();
        }
        if (!batch) return py::none();
        py::dict fields;
        for (std::size_t i = 0; i < batch->names.size(); ++i) {
          fields[py::str(batch->names[i])] = py::cast(batch->tensors[i]);
        }
        py::list damages;
        for (const data::SkippedSample& skipped : batch->skipped) damages.append(skipped.damage);
        return py::make_tuple(fields, damages, batch->samples, batch->global_samples);
      });
  module.def("open_loader", &open_loader);
  module.def("open_data_set", &open_data_set);
  module.def("epoch_of", [](const std::string& position) { return data::LoaderState::parse(position).epoch; });
}

}  // namespace dtrain::python
