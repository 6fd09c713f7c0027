#include <algorithm>
#include <iterator>
#include <typeinfo>
#include <utility>

#include <c10/util/Type.h>

#include "device/pinned_memory.h"
#include "dtrain/base/cgroup.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/cpu.h"
#include "dtrain/run/rank_session.h"
#include "dtrain/train/trial.h"
#include "loop/unread_keys.h"
#include "model/gradient_checkpointing.h"
#include "model/model_tensors.h"

namespace dtrain {

std::string Trial::state_owner() const {
  return "the trial " + c10::demangle(typeid(*this).name());
}

TrialContext::TrialContext(run::RankSession& session, at::Device device)
    : session_(session), device_(device), data_(session.experiment().data) {}

int TrialContext::rank() const {
  return session_.world().rank;
}
int TrialContext::world_size() const {
  return session_.world().size;
}
std::int64_t TrialContext::batch_size() const {
  return session_.batch_per_rank();
}

bool TrialContext::has_hyperparameter(const std::string& name) const {
  hyperparameters_asked_.insert(name);
  return session_.experiment().hyperparameters.contains(name);
}

const Json& TrialContext::hyperparameter_json(const std::string& name) const {
  hyperparameters_asked_.insert(name);
  const Json& all = session_.experiment().hyperparameters;
  const auto found = all.find(name);
  if (found == all.end()) {
    throw ConfigError(session_.experiment().file.string() + ": hyperparameters." + name + " is missing",
                      "the trial needs it: add it to the experiment or give --set hyperparameters." + name + "=…");
  }
  return *found;
}

Scope TrialContext::scope(std::string_view name) {
  return session_.recorder().scope(name);
}

void TrialContext::warn_of_unread_keys() {
  if (std::exchange(unread_keys_told_, true) || rank() != 0) return;
  std::vector<train::SectionRead> sections{
      {"hyperparameters", &session_.experiment().hyperparameters, hyperparameters_asked_}};
  sections.front().asked.insert("global_batch_size");  // the run reads this key
  if (!data_.all_asked()) sections.push_back({"data", &data_.given(), data_.asked()});
  const std::string text = train::describe_unread(sections);
  if (!text.empty()) session_.log()->warn("{}", text);
}

std::filesystem::path TrialContext::resolve(const std::string& path) const {
  return session_.experiment().file.parent_path() / path;
}

void TrialContext::set_model(std::shared_ptr<torch::nn::Module> model) {
  if (!model) throw ConfigError("wrap_model() was given no model");
  if (wrapped_.model) {
    throw ConfigError("wrap_model() was called twice",
                      "give each of several models a name: wrap_model(\"generator\", model)");
  }
  train::check_tensors(*model);
  train::move_model(*model, device_);
  train::watch_buffers_of(model);
  wrapped_.model = std::move(model);
}

void TrialContext::add_model(const std::string& name, std::shared_ptr<torch::nn::Module> model) {
  const std::string call = "wrap_model(\"" + name + "\")";
  if (!model) throw ConfigError(call + " was given no model");
  if (name.empty() || name.find('.') != std::string::npos) {
    throw ConfigError(call + ": the name must not be empty, and must have no dot");
  }
  if (wrapped_.model && wrapped_.models.empty()) {
    throw ConfigError(call + " was called beside wrap_model() without a name", "give each of several models a name");
  }
  if (std::find(wrapped_.models.begin(), wrapped_.models.end(), name) != wrapped_.models.end()) {
    throw ConfigError(call + " was called twice", "give each model a name of its own");
  }
  train::check_tensors(*model);
  train::move_model(*model, device_);
  train::watch_buffers_of(model);
  if (!wrapped_.model) wrapped_.model = std::make_shared<torch::nn::Module>("models");
  wrapped_.model->register_module(name, std::move(model));
  wrapped_.models.push_back(name);
}

void TrialContext::wrap_optimizer(const Optimizer& optimizer, std::vector<ParameterGroup> groups) {
  if (wrapped_.has_common_optimizer) {
    throw ConfigError("wrap_optimizer() was called twice", "one of several models is named by its first argument");
  }
  wrapped_.optimizer = optimizer;
  wrapped_.has_common_optimizer = true;
  wrapped_.groups.insert(wrapped_.groups.end(), std::make_move_iterator(groups.begin()),
                         std::make_move_iterator(groups.end()));
}

void TrialContext::wrap_optimizer(const std::string& model, const Optimizer& optimizer,
                                  std::vector<ParameterGroup> groups) {
  const std::string call = "wrap_optimizer(\"" + model + "\")";
  if (std::find(wrapped_.models.begin(), wrapped_.models.end(), model) == wrapped_.models.end()) {
    throw ConfigError(call + ": no model of that name has been wrapped",
                      wrapped_.models.empty() ? "call wrap_model(\"" + model + "\", …) before"
                                              : "the models are " + join(wrapped_.models, ", "));
  }
  if (wrapped_.groups_of_models.contains(model)) throw ConfigError(call + " was called twice");
  const auto is_of_model = [prefix = model + "."](const std::string& name) { return name.starts_with(prefix); };
  std::vector<ParameterGroup> own;
  for (ParameterGroup& group : groups) {
    ParameterGroup of_model = group;
    of_model.name = model + "/" + group.name;
    of_model.includes = [is_of_model, includes = group.includes](const std::string& name, const at::Tensor& of) {
      return is_of_model(name) && includes(name, of);
    };
    own.push_back(std::move(of_model));
  }
  own.push_back({.name = model,
                 .includes = [is_of_model](const std::string& name, const at::Tensor&) { return is_of_model(name); },
                 .optimizer = optimizer,
                 .may_be_empty = !groups.empty()});  // the groups may have all parameters of the model
  // Goes before the groups of wrap_optimizer(optimizer): a parameter belongs to the first group that includes it.
  std::size_t first = 0;
  for (const auto& [name, range] : wrapped_.groups_of_models) first = std::max(first, range.end);
  wrapped_.groups.insert(wrapped_.groups.begin() + static_cast<std::ptrdiff_t>(first),
                         std::make_move_iterator(own.begin()), std::make_move_iterator(own.end()));
  wrapped_.groups_of_models[model] = {first, first + own.size()};
  if (!wrapped_.optimizer) wrapped_.optimizer = optimizer;
}

void TrialContext::wrap_lr_scheduler(const std::string& model, LrSchedule schedule) {
  const auto found = wrapped_.groups_of_models.find(model);
  if (found == wrapped_.groups_of_models.end()) {
    throw ConfigError("wrap_lr_scheduler(\"" + model + "\"): this model has no optimizer of its own",
                      "call wrap_optimizer(\"" + model + "\", optimizer) before");
  }
  for (std::size_t i = found->second.first; i < found->second.end; ++i) {
    if (!wrapped_.groups[i].schedule) wrapped_.groups[i].schedule = schedule;
  }
}

void TrialContext::wrap_lr_scheduler(LrSchedule schedule) {
  wrapped_.schedule = std::move(schedule);
}

void TrialContext::clip_gradient_norm(double max_norm) {
  if (!(max_norm > 0)) {
    throw ConfigError("clip_gradient_norm(" + std::to_string(max_norm) + "): the norm must be above 0");
  }
  wrapped_.max_gradient_norm = max_norm;
}

void TrialContext::clip_gradient_value(double max_value) {
  if (!(max_value > 0)) {
    throw ConfigError("clip_gradient_value(" + std::to_string(max_value) + "): the value must be above 0");
  }
  wrapped_.max_gradient_value = max_value;
}

void TrialContext::scale_loss(const LossScaling& settings) {
  wrapped_.loss_scaling = settings;
}

void TrialContext::backward(const at::Tensor& loss) {
  if (!wrapped_.backward) throw Error("context.backward() was called outside train_batch()");
  wrapped_.backward(loss, {});
}

void TrialContext::backward(const at::Tensor& loss, double weight) {
  backward(loss, BackwardOptions{.weight = weight});
}

void TrialContext::backward(const at::Tensor& loss, const BackwardOptions& options) {
  if (!wrapped_.backward) throw Error("context.backward() was called outside train_batch()");
  wrapped_.backward(loss, options);
}

void TrialContext::step() {
  if (!wrapped_.step) throw Error("context.step() was called outside train_batch()");
  wrapped_.step();
}

void TrialContext::log(const std::string& name, const MetricValue& value) {
  if (!around_.logged) {
    throw Error("context.log(\"" + name + "\") was called outside a batch",
                "call it in train_batch(), evaluate_batch(), before_batch() or after_batch()");
  }
  around_.logged->insert_or_assign(name, value);
}

void TrialContext::add_callback(std::shared_ptr<Callback> callback) {
  if (!callback) throw ConfigError("add_callback() was given no callback");
  around_.callbacks.push_back(std::move(callback));
}

void TrialContext::add_metric(const std::string& name, std::shared_ptr<GatheredMetric> metric) {
  insert_metric(name, std::move(metric));
}

void TrialContext::add_metric(const std::string& name, std::shared_ptr<SummedMetric> metric) {
  insert_metric(name, std::move(metric));
}

template <typename Metric>
void TrialContext::insert_metric(const std::string& name, std::shared_ptr<Metric> metric) {
  if (!metric) throw ConfigError("add_metric(\"" + name + "\") was given no metric");
  if (!around_.metrics.emplace(name, std::move(metric)).second) {
    throw ConfigError("add_metric(\"" + name + "\") was called twice", "give each metric a name of its own");
  }
}

void TrialContext::save_checkpoint() {
  around_.wants_checkpoint = true;
}

void TrialContext::stop_early(const EarlyStopping& settings) {
  if (around_.early_stopping) throw ConfigError("stop_early() was called twice");
  around_.early_stopping = settings;
}

namespace {

// Returns the cores that this rank may use and that its own threads leave to the loader. With a GPU one thread issues
// the work. All ranks of the host share the cores that a cgroup grants.
double free_cores(at::Device device, int ranks_of_host) {
  const int used = device.is_cpu() ? at::get_num_threads() : 1;
  auto cpus = static_cast<double>(host::allowed_cpus().size());
  for (const CpuQuota& quota : cpu_quotas(cgroups_of(0))) cpus = std::min(cpus, quota.cpus / ranks_of_host);
  return cpus - used;
}

}  // namespace

Loader TrialContext::loader(std::shared_ptr<const data::Dataset> dataset, const LoaderSettings& settings) {
  data::LoaderOptions options;
  options.batch_size = batch_size();
  options.rank = rank();
  options.world_size = world_size();
  options.shuffle = settings.shuffle;
  options.drop_last = settings.drop_last;
  options.seed = session_.experiment().experiment_seed;
  options.workers = settings.workers;
  options.prefetch = settings.prefetch;
  options.free_cores = free_cores(device_, session_.world().local_size);
  options.skip_damaged = settings.skip_damaged;
  options.max_skipped = settings.max_skipped;
  options.shuffle_window = settings.shuffle_window;
  // The loader gives up before the other ranks give up on this rank, so that the run ends with the cause.
  options.timeout = session_.experiment().communication_timeout * 9 / 10;
  options.ranks_of_host = session_.world().local_size;
  if (!device_.is_cpu() && settings.pin) options.allocate = train::pinned_allocator();
  return make_loader(std::move(dataset), options);
}

data::HostShare TrialContext::host_share() {
  return [this](const std::string& name, const std::function<SharedMemory()>& make) {
    return session_.share_on_host(name + "/" + std::to_string(shares_++), make);
  };
}

std::shared_ptr<data::Dataset> TrialContext::read_idx(const std::string& images, const std::string& labels) {
  return data::read_idx(resolve(images), resolve(labels), host_share());
}

}  // namespace dtrain
