#include "environment.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

#include "harness/fake_gpu_names.h"

namespace dtrain::test::fake_gpu {

namespace {

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream rest(text);
  for (std::string part; std::getline(rest, part, separator);) {
    part.erase(0, part.find_first_not_of(' '));
    part.erase(part.find_last_not_of(' ') + 1);
    parts.push_back(part);
  }
  return parts;
}

// -1: there is no such number.
int whole_number(const std::string& text) {
  if (text.empty() || text.size() > 9 || text.find_first_not_of("0123456789") != std::string::npos) return -1;
  return std::stoi(text);
}

int gpu_of(const std::string& word, int installed) {
  if (!word.starts_with("GPU-")) {
    const int number = whole_number(word);
    return number < installed ? number : -1;
  }
  int found = -1;
  for (int gpu = 0; gpu < installed; ++gpu) {
    if (!fake_gpu_uuid(gpu).starts_with(word)) continue;
    if (found >= 0) return -1;  // it could be either
    found = gpu;
  }
  return found;
}

}  // namespace

int number_from(const char* variable, int otherwise, int most) {
  const char* const text = std::getenv(variable);
  const int number = text == nullptr ? otherwise : whole_number(text);
  if (number < 0 || number > most) {
    throw std::out_of_range(std::string(variable) + "=" + text + " is not a number from 0 to " + std::to_string(most));
  }
  return number;
}

std::vector<int> visible_gpus(int installed) {
  std::vector<int> gpus;
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) {
    for (int gpu = 0; gpu < installed; ++gpu) gpus.push_back(gpu);
    return gpus;
  }
  for (const std::string& word : parts_of(visible, ',')) {
    const int gpu = gpu_of(word, installed);
    if (gpu < 0) break;
    if (std::find(gpus.begin(), gpus.end(), gpu) != gpus.end()) return {};
    gpus.push_back(gpu);
  }
  return gpus;
}

std::optional<Fault> fault_from_environment() {
  const char* const text = std::getenv("DTRAIN_FAKE_GPU_FAULT");
  if (text == nullptr) return std::nullopt;
  const char* const wanted = std::getenv("DTRAIN_FAKE_GPU_FAULT_RANK");
  const char* const rank = std::getenv("DTRAIN_RANK");
  const std::vector<std::string> parts = parts_of(text, ':');
  const auto wrong = [&] {
    return std::invalid_argument(std::string("DTRAIN_FAKE_GPU_FAULT=") + text +
                                 " is not allocation:N, lost:N, lost:N:CODE, nccl_error:N or nccl_hang:N");
  };
  if (parts.size() < 2) throw wrong();
  Fault fault{};
  if (parts[0] == "allocation") {
    fault.kind = Fault::Kind::kAllocation;
  } else if (parts[0] == "lost") {
    fault.kind = Fault::Kind::kLost;
  } else if (parts[0] == "nccl_error") {
    fault.kind = Fault::Kind::kNcclError;
  } else if (parts[0] == "nccl_hang") {
    fault.kind = Fault::Kind::kNcclHang;
  } else {
    throw wrong();
  }
  fault.at = whole_number(parts[1]);
  if (parts.size() == 3 && fault.kind == Fault::Kind::kLost) {
    fault.code = whole_number(parts[2]);
  } else if (parts.size() > 2) {
    throw wrong();
  }
  if (fault.at < 1 || fault.code < 1) throw wrong();
  if (wanted != nullptr && (rank == nullptr || std::string(wanted) != rank)) return std::nullopt;
  return fault;
}

}  // namespace dtrain::test::fake_gpu
