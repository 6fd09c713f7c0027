#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>
#include <typeinfo>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/Type.h>

#include "device/device_feed.h"
#include "dtrain/base/cgroup.h"
#include "dtrain/base/error.h"
#include "dtrain/base/text.h"
#include "dtrain/config/experiment.h"
#include "dtrain/host/cpu.h"
#include "dtrain/profile/event_file.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/train/trial.h"
#include "loop/logical_batches.h"
#include "loop/unread_keys.h"
#include "model/gradient_checkpointing.h"
#include "model/model_tensors.h"

namespace dtrain {

at::Tensor Trial::predict_batch(const Batch&) {
  throw ConfigError("the trial has no predict_batch(), which dtrain predict needs",
                    "override it: it returns the model's output for a batch (docs/api.md)");
}

std::string Trial::state_owner() const {
  return "the trial " + c10::demangle(typeid(*this).name());
}

TrialContext::TrialContext(rank::RankSession& session, at::Device device)
    : session_(session), device_(device), data_(session.experiment().data) {}

int TrialContext::rank() const {
  return session_.logical().current;
}
int TrialContext::world_size() const {
  return session_.logical().size;
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

std::string shape_of(const at::Tensor& tensor) {
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << " " << tensor.sizes();
  return text.str();
}

void require_values(const std::string& call, const std::string& name, const at::Tensor& tensor) {
  if (name.empty()) throw Error(call + " was given an empty name");
  if (!tensor.defined() || tensor.numel() == 0) throw Error(call + " was given a tensor without values");
  if (tensor.layout() != at::kStrided) throw Error(call + " was given a sparse tensor", "give it tensor.to_dense()");
  if (at::isComplexType(tensor.scalar_type())) throw Error(call + " was given complex values", "give it their abs()");
}

// Puts pictures of [count, channels, height, width] beside each other: as many rows as columns, or one row less.
at::Tensor side_by_side(const at::Tensor& pictures) {
  const std::int64_t count = pictures.size(0);
  const auto columns = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(count))));
  const std::int64_t rows = (count + columns - 1) / columns;
  const std::int64_t channels = pictures.size(1), height = pictures.size(2), width = pictures.size(3);
  const at::Tensor all = at::zeros({rows * columns, channels, height, width}, pictures.options());
  all.narrow(0, 0, count).copy_(pictures);
  return all.reshape({rows, columns, channels, height, width})
      .permute({2, 0, 3, 1, 4})
      .reshape({channels, rows * height, columns * width});
}

// Returns the image as [channels, height, width].
at::Tensor with_channels(const std::string& call, const at::Tensor& image) {
  at::Tensor result = image;
  if (image.dim() == 2) result = image.unsqueeze(0);
  if (image.dim() == 4) result = side_by_side(image);
  const bool fits = result.dim() == 3 && (result.size(0) == 1 || result.size(0) == 3 || result.size(0) == 4);
  if (fits) return result;
  throw Error(call + " was given a tensor of " + shape_of(image),
              "give it [height, width], [channels, height, width] or [pictures, channels, height, width] with 1, 3 or "
              "4 channels");
}

profile::Picture picture_of(const at::Tensor& image) {
  at::Tensor bytes = image;
  if (image.scalar_type() != at::kByte) {
    bytes = image.to(at::kFloat).nan_to_num(0, 1, 0).clamp(0, 1).mul_(255).round_().to(at::kByte);
  }
  const at::Tensor rows = bytes.permute({1, 2, 0}).contiguous().cpu();
  const auto* const data = reinterpret_cast<const char*>(rows.const_data_ptr<std::uint8_t>());
  return {.height = rows.size(0),
          .width = rows.size(1),
          .channels = static_cast<int>(rows.size(2)),
          .pixels = std::string(data, static_cast<std::size_t>(rows.numel()))};
}

}  // namespace

Loader TrialContext::loader(std::shared_ptr<const data::Dataset> dataset, const LoaderSettings& settings) {
  data::LoaderOptions options;
  const rank::LogicalRanks& ranks = session_.logical();
  if (ranks.virtuals && settings.skip_damaged) {
    throw ConfigError("LoaderSettings::skip_damaged is not supported yet with reproducibility.virtual_ranks",
                      "leave one of both out");
  }
  options.batch_size = batch_size();
  options.rank = rank();
  options.world_size = world_size();
  options.shuffle = settings.shuffle;
  options.drop_last = settings.drop_last;
  options.seed = session_.experiment().experiment_seed;
  options.workers = settings.workers;
  options.prefetch = settings.prefetch;
  options.free_cores = free_cores(device_, session_.world().local_size) / ranks.count();
  options.skip_damaged = settings.skip_damaged;
  options.max_skipped = settings.max_skipped;
  options.shuffle_window = settings.shuffle_window;
  // The loader gives up before the other ranks give up on this rank, so that the run ends with the cause.
  options.timeout = session_.experiment().communication_timeout * 9 / 10;
  options.ranks_of_host = session_.world().local_size;
  if (!device_.is_cpu() && settings.pin) options.allocate = train::pinned_allocator();
  if (!session_.predictions().empty()) options.take_all_in_order();
  if (!ranks.virtuals) return make_loader(std::move(dataset), options);
  std::vector<Loader> of_ranks;
  for (options.rank = ranks.begin; options.rank < ranks.end; ++options.rank) {
    of_ranks.push_back(make_loader(dataset, options));
  }
  return std::make_shared<train::LogicalBatches>(session_, std::move(of_ranks));
}

data::HostShare TrialContext::host_share() {
  return [this](const std::string& name, const std::function<SharedMemory()>& make) {
    return session_.keep_on_host(name + "/" + std::to_string(shares_++), make);
  };
}

std::shared_ptr<data::Dataset> TrialContext::read_idx(const std::string& images, const std::string& labels) {
  return data::read_idx(resolve(images), resolve(labels), host_share());
}

void TrialContext::log_image(const std::string& name, const at::Tensor& image) {
  const at::NoGradGuard no_grad;
  const std::string call = "context.log_image(\"" + name + "\")";
  require_values(call, name, image);
  if (image.scalar_type() != at::kByte && !at::isFloatingType(image.scalar_type())) {
    throw Error(call + " was given a tensor of " + shape_of(image),
                "give it uint8 from 0 to 255, or floating values from 0 to 1");
  }
  const at::Tensor channels = with_channels(call, image.detach());
  ++around_.logged_for_tensorboard;
  if (rank() == 0) session_.write_picture(name, around_.batch, picture_of(channels));
}

void TrialContext::log_histogram(const std::string& name, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  const std::string call = "context.log_histogram(\"" + name + "\")";
  require_values(call, name, values);
  ++around_.logged_for_tensorboard;
  if (rank() != 0) return;
  const at::Tensor flat = values.detach().reshape({-1}).to(at::kFloat).contiguous().cpu();
  const auto* const data = flat.const_data_ptr<float>();
  session_.write_histogram(name, around_.batch, {data, data + flat.numel()});
}

}  // namespace dtrain
