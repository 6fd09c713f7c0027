#include "loop/callbacks.h"

#include <exception>
#include <map>
#include <typeinfo>

#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include "checkpoint/state_image.h"
#include "dtrain/base/error.h"
#include "dtrain/base/json.h"
#include "loop/random_seed.h"

namespace dtrain {

std::string Callback::name() const {
  return c10::demangle(typeid(*this).name());
}

namespace train {

namespace {

// Returns the trial's callbacks. Each rank must add the same to its context: all additions are collective. Collective.
std::vector<std::shared_ptr<Callback>> compared_callbacks(rank::RankSession& session, TrialContext& context) {
  const TrialContext::AroundTheLoop& around = context.around_the_loop();
  Json mine = {{"callbacks", Json::array()}, {"metrics", Json::array()}};
  for (const auto& callback : around.callbacks) mine["callbacks"].push_back(callback->name());
  for (const auto& [name, metric] : around.metrics) mine["metrics"].push_back(name);
  if (const auto& stopping = around.early_stopping) {
    mine["stop_early"] = {stopping->metric, stopping->smaller_is_better, stopping->patience, stopping->min_delta};
  }
  if (const auto& plateau = context.wrapped().plateau) {
    mine["reduce_lr_on_plateau"] = {plateau->factor, plateau->patience, plateau->min_delta, plateau->min_factor};
  }
  const std::vector<std::string> all = session.control().gather("train/around-the-loop", mine.dump());
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all.front()) continue;
    throw rank::AgreedError(
        "the trial has added " + all.front() + " on rank 0 and " + all[rank] + " on rank " + std::to_string(rank),
        "add the same callbacks and metrics on every rank, in the same order");
  }
  return around.callbacks;
}

}  // namespace

Callbacks::Callbacks(rank::RankSession& session, TrialContext& context, const Position& position)
    : session_(session), callbacks_(compared_callbacks(session, context)), position_(position) {}

void Callbacks::tell(const Callback::Event& event) {
  if (session_.mock().any() || session_.evaluates()) return;
  const profile::PhaseScope phase(session_.recorder(), profile::Phase::kCallbacks);
  const auto failed = [&](const Callback& callback, const std::string& cause) {
    if (callback.name().empty()) return Error(cause);  // not the user's, but a part of how a script is run
    return Error("the callback " + callback.name() + " failed in " + event.function + "(), at batch " +
                 std::to_string(event.position.batch) + ": " + cause);
  };
  for (const auto& callback : callbacks_) {
    seed_draws(session_, Draws::kCallbacks, event.position.batch);
    try {
      callback->receive(event);
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
