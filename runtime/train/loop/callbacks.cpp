#include "loop/callbacks.h"

#include <exception>
#include <map>
#include <typeinfo>
#include <utility>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include "checkpoint/state_image.h"
#include "dtrain/base/error.h"
#include "loop/random_seed.h"

namespace dtrain {

std::string Callback::name() const {
  return c10::demangle(typeid(*this).name());
}

namespace train {

Callbacks::Callbacks(run::RankSession& session, std::vector<std::shared_ptr<Callback>> callbacks,
                     const Position& position)
    : session_(session), callbacks_(std::move(callbacks)), position_(position) {}

void Callbacks::call(const char* function, std::int64_t batch,
                     const std::function<void(Callback&, const Callback::Position&)>& call_one) {
  if (callbacks_.empty() || session_.mock().any()) return;
  const profile::PhaseScope phase(session_.recorder(), profile::Phase::kCallbacks);
  const auto failed = [&](const Callback& callback, const std::string& cause) {
    if (callback.name().empty()) return Error(cause);  // not the user's, but a part of how a script is run
    return Error("the callback " + callback.name() + " failed in " + function + "(), at batch " +
                 std::to_string(batch) + ": " + cause);
  };
  for (const auto& callback : callbacks_) {
    seed_draws(session_, Draws::kCallbacks, batch);
    try {
      call_one(*callback, {batch, position_.epoch});
    } catch (const CommError&) {
      throw;  // error of a collective, which another rank may have caused
    } catch (const c10::Error& error) {
      throw failed(*callback, error.what_without_backtrace());
    } catch (const std::exception& error) {
      throw failed(*callback, describe(error));
    } catch (...) {
      throw failed(*callback, "it threw an object that is not a std::exception");
    }
  }
}

void Callbacks::on_training_start() {
  call("on_training_start", position_.batches, [](Callback& one, const auto& at) { one.on_training_start(at); });
}
void Callbacks::before_batch(const Batch& batch) {
  call("before_batch", position_.batches + 1, [&](Callback& one, const auto& at) { one.before_batch(at, batch); });
}
void Callbacks::after_batch(const Metrics& metrics) {
  call("after_batch", position_.batches, [&](Callback& one, const auto& at) { one.after_batch(at, metrics); });
}
void Callbacks::on_epoch_end() {
  call("on_epoch_end", position_.batches, [](Callback& one, const auto& at) { one.on_epoch_end(at); });
}
void Callbacks::on_validation_end(const std::map<std::string, double>& metrics) {
  call("on_validation_end", position_.batches,
       [&](Callback& one, const auto& at) { one.on_validation_end(at, metrics); });
}
void Callbacks::on_checkpoint() {
  call("on_checkpoint", position_.batches, [](Callback& one, const auto& at) { one.on_checkpoint(at); });
}
void Callbacks::on_training_end() {
  call("on_training_end", position_.batches, [](Callback& one, const auto& at) { one.on_training_end(at); });
}

void Callbacks::visit(StateVisitor& visitor) {
  std::map<std::string, int> numbers;  // for callbacks of the same name
  for (const auto& callback : callbacks_) {
    TrialStateEntries entries([&] { return callback->save_state(); },
                              [&](const TrialState& state) { callback->load_state(state); });
    const std::string name = callback->name();
    visitor.part(name + "#" + std::to_string(++numbers[name]), entries);
  }
}

}  // namespace train
}  // namespace dtrain
