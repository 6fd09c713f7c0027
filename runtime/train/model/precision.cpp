#include "model/precision.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "dtrain/base/error.h"

namespace dtrain::train {

std::optional<at::ScalarType> autocast_type(config::Precision precision) {
  if (precision == config::Precision::kFloat32) return std::nullopt;
  return precision == config::Precision::kFloat16 ? at::kHalf : at::kBFloat16;
}

Autocast::Autocast(std::optional<at::ScalarType> type, c10::Device device) : type_(type), device_(device.type()) {
  if (!type_) return;
  was_on_ = at::autocast::is_autocast_enabled(device_);
  type_before_ = at::autocast::get_autocast_dtype(device_);
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_dtype(device_, *type_);
}

Autocast::~Autocast() {
  if (!type_) return;
  at::autocast::set_autocast_enabled(device_, was_on_);
  at::autocast::set_autocast_dtype(device_, type_before_);
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
}

Autocast::Pause::Pause(const Autocast& autocast) : autocast_(autocast) {
  if (!autocast_.type_) return;
  was_on_ = at::autocast::is_autocast_enabled(autocast_.device_);
  at::autocast::set_autocast_enabled(autocast_.device_, false);
  at::autocast::clear_cache();  // parameters may change from here on
}

Autocast::Pause::~Pause() {
  if (autocast_.type_) at::autocast::set_autocast_enabled(autocast_.device_, was_on_);
}

namespace {

const LossScaling& checked(const LossScaling& settings) {
  if (!(settings.initial_scale > 0) || !std::isfinite(static_cast<float>(settings.initial_scale))) {
    throw ConfigError("the initial scale of the loss is " + std::to_string(settings.initial_scale),
                      "give scale_loss() a number above 0; 65536 is usual");
  }
  if (settings.growth_interval < 1) {
    throw ConfigError("the growth interval of the loss scale is " + std::to_string(settings.growth_interval),
                      "give scale_loss() 1 or more updates; 2000 is usual");
  }
  return settings;
}

thread_local NarrowUse* watching = nullptr;

// True for operators that get all floating-point tensors in the narrower type from autocast, on CPUs and on GPUs.
bool casts_all(std::string_view name) {
  static const std::unordered_set<std::string_view> kNames{"aten::conv1d",
                                                           "aten::conv2d",
                                                           "aten::conv3d",
                                                           "aten::conv_transpose1d",
                                                           "aten::conv_transpose2d.input",
                                                           "aten::conv_transpose2d",
                                                           "aten::conv_transpose3d.input",
                                                           "aten::conv_transpose3d",
                                                           "aten::linear",
                                                           "aten::matmul",
                                                           "aten::mm",
                                                           "aten::bmm",
                                                           "aten::addmm",
                                                           "aten::baddbmm"};
  return kNames.contains(name);
}

// True for operators that return another view of their first tensor.
bool makes_view(std::string_view name) {
  static const std::unordered_set<std::string_view> kNames{"aten::t",       "aten::transpose",  "aten::view",
                                                           "aten::permute", "aten::as_strided", "aten::numpy_T"};
  return kNames.contains(name);
}

struct ViewContext final : at::ObserverContext {
  explicit ViewContext(std::size_t index) : parameter(index) {}
  std::size_t parameter;
};

}  // namespace

LossScaler::LossScaler(const LossScaling& settings, c10::Device device)
    : growth_interval_(checked(settings).growth_interval),
      values_(at::zeros({3}, at::TensorOptions().device(device).dtype(at::kFloat))),
      scale_(values_.select(0, 0)),
      found_inf_(values_.select(0, 1)),
      skipped_(values_.select(0, 2)),
      growth_tracker_(at::zeros({}, at::TensorOptions().device(device).dtype(at::kInt))),
      one_(at::ones({}, values_.options())) {
  scale_.fill_(settings.initial_scale);
}

// Computes in double, as GradScaler does.
at::Tensor LossScaler::inverse(double factor) const {
  at::Tensor inverse = scale_.to(at::kDouble).reciprocal_();
  if (factor != 1) inverse.mul_(factor);
  return inverse.to(at::kFloat);
}

void LossScaler::unscale(at::TensorList gradients, const at::Tensor& factor) {
  if (gradients.empty()) return;
  at::Tensor found_inf = found_inf_;
  at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, factor);
}

void LossScaler::end_update() {
  skipped_.add_(found_inf_);
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf_, kGrowth, kBackoff, growth_interval_);
}

void LossScaler::visit(StateVisitor& visitor) {
  visitor.tensor("scale", scale_);
  visitor.tensor("growth_tracker", growth_tracker_);
  visitor.tensor("skipped_updates", skipped_);
}

// An operator that is called by another operator's autocast kernel gets tensors that are already cast.
bool NarrowUse::inside_autocast_kernel() const {
  return c10::impl::tls_is_dispatch_key_excluded(on_host_ ? c10::DispatchKey::AutocastCPU
                                                          : c10::DispatchKey::AutocastCUDA);
}

NarrowUse::NarrowUse(const FlatParameters& parameters)
    : on_host_(parameters.memory().on_host()), uses_(parameters.parameters().size()) {
  const auto all = parameters.parameters();
  for (std::size_t i = 0; i < all.size(); ++i) {
    index_.emplace(all[i].tensor.unsafeGetTensorImpl(), i);
    for (const auto* others : {&all[i].tied, &all[i].aliases}) {
      for (const at::Tensor& other : *others) index_.emplace(other.unsafeGetTensorImpl(), i);
    }
  }
}

void NarrowUse::add(const at::Tensor& input, bool narrow) {
  if (!input.defined()) return;
  const auto itself = index_.find(input.unsafeGetTensorImpl());
  const auto view = views_.find(input.unsafeGetTensorImpl());
  if (itself == index_.end() && view == views_.end()) return;
  Uses& uses = uses_[itself != index_.end() ? itself->second : view->second];
  (narrow ? uses.narrow : uses.other) = true;
  if (!narrow) return;
  const bool cached = itself != index_.end();
  if (!cached || !std::exchange(uses.cast_itself, true)) ++uses.casts;
  uses.most_casts = std::max(uses.most_casts, uses.casts);
}

bool NarrowUse::only_narrow(std::size_t parameter) const {
  const Uses& uses = uses_[parameter];
  return uses.narrow && !uses.other && uses.most_casts == 1;
}

std::unique_ptr<at::ObserverContext> NarrowUse::see(const at::RecordFunction& function) {
  if (watching == nullptr || watching->inside_autocast_kernel()) return nullptr;
  const auto inputs = function.inputs();
  if (makes_view(function.name()) && !inputs.empty() && inputs[0].isTensor()) {
    const at::TensorImpl* const base = inputs[0].toTensor().unsafeGetTensorImpl();
    for (const auto* known : {&watching->index_, &watching->views_}) {
      if (const auto found = known->find(base); found != known->end())
        return std::make_unique<ViewContext>(found->second);
    }
    return nullptr;
  }
  const bool narrow = casts_all(function.name());
  for (const c10::IValue& input : inputs) {
    if (input.isTensor()) {
      watching->add(input.toTensor(), narrow);
    } else if (input.isTensorList()) {
      for (const at::Tensor& tensor : input.toTensorVector()) watching->add(tensor, /*narrow=*/false);
    }
  }
  return nullptr;
}

void NarrowUse::see_end(const at::RecordFunction& function, at::ObserverContext* context) {
  const auto* const view = static_cast<ViewContext*>(context);
  if (watching == nullptr || view == nullptr || function.outputs().empty()) return;
  const c10::IValue& output = function.outputs()[0];
  if (!output.isTensor() || !output.toTensor().defined()) return;
  watching->kept_.push_back(output.toTensor());
  watching->views_.emplace(output.toTensor().unsafeGetTensorImpl(), view->parameter);
}

NarrowUse::Watching::Watching(NarrowUse& use) {
  watching = &use;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&NarrowUse::see, &NarrowUse::see_end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

NarrowUse::Watching::~Watching() {
  at::removeCallback(handle_);
  watching->views_.clear();
  watching->kept_.clear();
  for (Uses& uses : watching->uses_) {
    uses.casts = 0;
    uses.cast_itself = false;
  }
  watching = nullptr;
}

}  // namespace dtrain::train
