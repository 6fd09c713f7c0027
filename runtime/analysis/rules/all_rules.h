// The rules, each in the file of its name: pure functions of series and parameters. Private to analysis.
#pragma once

#include <span>

#include "dtrain/analysis/rules.h"
#include "dtrain/config/profiling_rules.h"
#include "rules/series.h"

namespace dtrain::analysis::rules {

using Rules = config::ProfilingRules;
using Hosts = std::span<const HostSeries>;

// Those of the report.
RuleResult step_outlier(std::span<const StepSeries> series, const Rules::StepOutlier& parameters);
RuleResult dataloader(std::span<const LoaderSeries> loaders, Hosts hosts, const Rules::Dataloader& parameters);
RuleResult low_gpu_utilization(Hosts hosts, const Rules::LowGpuUtilization& parameters);
RuleResult load_balancing(Hosts hosts, const Rules::LoadBalancing& parameters);
RuleResult io_bottleneck(Hosts hosts, const Rules::IoBottleneck& parameters);
RuleResult cpu_bottleneck(Hosts hosts, const Rules::CpuBottleneck& parameters);
RuleResult batch_size(Hosts hosts, const Rules::BatchSize& parameters);
RuleResult gpu_memory_increase(Hosts hosts, const Rules::GpuMemoryIncrease& parameters);
RuleResult max_initialization_time(std::span<const InitializationTime> ranks,
                                   const Rules::MaxInitializationTime& parameters);

// Runs on CPUs.
RuleResult idle_cores(Hosts hosts, const Rules::IdleCores& parameters);
RuleResult cpu_oversubscription(Hosts hosts, const Rules::CpuOversubscription& parameters);

// What surrounds the training.
RuleResult gpu_utilization(Hosts hosts, const Rules::GpuUtilization& parameters);
RuleResult gpu_memory_full(Hosts hosts, const Rules::GpuMemoryFull& parameters);
RuleResult host_memory_full(Hosts hosts, const Rules::HostMemoryFull& parameters);
RuleResult network_full(Hosts hosts, const Rules::NetworkFull& parameters);
RuleResult cpu_full(Hosts hosts, const Rules::CpuFull& parameters);
RuleResult disk_rate(Hosts hosts, const Rules::DiskRate& parameters);
RuleResult gpu_foreign_processes(Hosts hosts, const Rules::GpuForeignProcesses& parameters);
RuleResult gpu_temperature(Hosts hosts, const Rules::GpuTemperature& parameters);
RuleResult loader_rate(std::span<const LoaderSeries> loaders, const Rules::LoaderRate& parameters);

// How the model is computed.
RuleResult pinned_memory(std::span<const LoaderSeries> loaders, Hosts hosts);
RuleResult dimension_multiples(const ModelFacts& model, Hosts hosts, const Rules::DimensionMultiples& parameters);
RuleResult mixed_precision(const ModelFacts& model, Hosts hosts);
RuleResult fused_optimizer(const ModelFacts& model);

}  // namespace dtrain::analysis::rules
