// The list of the rules, and its place in the experiment file: config reads the rules' keys without knowing any rule.
#include "rules/rule.h"

namespace dtrain::analysis::rules {

// Each function is at the end of its rule's file.
std::unique_ptr<Rule> make_step_outlier();
std::unique_ptr<Rule> make_dataloader();
std::unique_ptr<Rule> make_low_gpu_utilization();
std::unique_ptr<Rule> make_load_balancing();
std::unique_ptr<Rule> make_io_bottleneck();
std::unique_ptr<Rule> make_cpu_bottleneck();
std::unique_ptr<Rule> make_batch_size();
std::unique_ptr<Rule> make_gpu_memory_increase();
std::unique_ptr<Rule> make_max_initialization_time();
std::unique_ptr<Rule> make_idle_cores();
std::unique_ptr<Rule> make_cpu_oversubscription();
std::unique_ptr<Rule> make_gpu_utilization();
std::unique_ptr<Rule> make_gpu_memory_full();
std::unique_ptr<Rule> make_host_memory_full();
std::unique_ptr<Rule> make_network_full();
std::unique_ptr<Rule> make_cpu_full();
std::unique_ptr<Rule> make_cpu_quota();
std::unique_ptr<Rule> make_disk_rate();
std::unique_ptr<Rule> make_gpu_foreign_processes();
std::unique_ptr<Rule> make_gpu_temperature();
std::unique_ptr<Rule> make_loader_rate();
std::unique_ptr<Rule> make_small_reads();
std::unique_ptr<Rule> make_pinned_memory();
std::unique_ptr<Rule> make_dimension_multiples();
std::unique_ptr<Rule> make_mixed_precision();
std::unique_ptr<Rule> make_fused_optimizer();

namespace {

// The order is that of docs/rules.md: the nine of the profiling report; runs on CPUs; the environment of the training;
// the computing of the model.
constexpr std::unique_ptr<Rule> (*kRules[])() = {make_step_outlier,
                                                 make_dataloader,
                                                 make_low_gpu_utilization,
                                                 make_load_balancing,
                                                 make_io_bottleneck,
                                                 make_cpu_bottleneck,
                                                 make_batch_size,
                                                 make_gpu_memory_increase,
                                                 make_max_initialization_time,
                                                 make_idle_cores,
                                                 make_cpu_oversubscription,
                                                 make_gpu_utilization,
                                                 make_gpu_memory_full,
                                                 make_host_memory_full,
                                                 make_network_full,
                                                 make_cpu_full,
                                                 make_cpu_quota,
                                                 make_disk_rate,
                                                 make_gpu_foreign_processes,
                                                 make_gpu_temperature,
                                                 make_loader_rate,
                                                 make_small_reads,
                                                 make_pinned_memory,
                                                 make_dimension_multiples,
                                                 make_mixed_precision,
                                                 make_fused_optimizer};

std::unique_ptr<config::RuleParameters> make_defaults() {
  return std::make_unique<RuleSet>(all_rules());
}

// Registers the rules when this library is loaded, before main().
[[maybe_unused]] const bool kRegistered = config::register_rules(make_defaults);

}  // namespace

Rules all_rules() {
  Rules rules;
  for (const auto make : kRules) rules.push_back(make());
  return rules;
}

void RuleSet::declare_keys(config::Keys& keys) {
  for (const auto& rule : rules_) rule->declare_keys(keys);
}

std::unique_ptr<config::RuleParameters> RuleSet::clone() const {
  Rules copies;
  for (const auto& rule : rules_) copies.push_back(rule->clone());
  return std::make_unique<RuleSet>(std::move(copies));
}

}  // namespace dtrain::analysis::rules
