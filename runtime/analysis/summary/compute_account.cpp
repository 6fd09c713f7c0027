#include "summary/compute_account.h"

namespace dtrain::analysis {
namespace {

std::string why_without_mfu(const Roofline& roofline) {
  if (roofline.flops_per_sample <= 0) return "no product of matrices, convolution or attention was counted";
  if (roofline.device != "cpu") return "limits of GPUs are not measured";
  return "plan.json has no limit of the machine for " + roofline.dtype +
         ": run 'dtrain doctor --bench' on each host, then launch again";
}

}  // namespace

std::optional<ComputeAccount> compute_account(const Evidence& evidence, const RunSummary& summary) {
  const Roofline& roofline = evidence.roofline;
  if (roofline.device.empty() || summary.steps <= 0) return std::nullopt;
  ComputeAccount account;
  account.flops_per_sample = roofline.flops_per_sample;
  account.flops_per_step =
      roofline.flops_per_sample * static_cast<double>(summary.samples) / static_cast<double>(summary.steps);
  account.dtype = roofline.dtype;
  account.achieved_gflops = roofline.flops_per_sample * summary.training_samples_per_s / kGiga;
  account.limit_gflops = roofline.limit_gflops;
  account.achieved_gb_s = roofline.achieved_gb_s;
  account.limit_gb_s = roofline.limit_gb_s;
  if (account.limit_gflops && account.achieved_gflops > 0) {
    account.mfu = account.achieved_gflops / *account.limit_gflops;
  } else {
    account.without_mfu = why_without_mfu(roofline);
  }
  return account;
}

}  // namespace dtrain::analysis
