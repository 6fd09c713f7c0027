#include "checkpoint/own_state.h"

#include <cstring>

#include <ATen/core/grad_mode.h>

#include "dtrain/base/error.h"

namespace dtrain::train {
namespace {

constexpr std::size_t kEntryAlignment = 16;

constexpr std::size_t padded(std::size_t bytes) {
  return (bytes + kEntryAlignment - 1) / kEntryAlignment * kEntryAlignment;
}

}  // namespace

// Each entry: its head, its path, the tensor's sizes, its bytes; each part is aligned.
struct OwnStateWriter::Head {
  enum Kind : std::uint8_t { kTensor, kNumber, kReal, kReals, kText };
  Kind kind = kTensor;
  at::ScalarType type = at::kByte;
  std::uint16_t dimensions = 0;
  std::uint32_t path_bytes = 0;
  std::uint64_t bytes = 0;
};

std::byte* OwnStateWriter::add(const Head& head, const std::string& path, std::size_t bytes) {
  const std::size_t before = padded(sizeof head) + padded(path.size());
  const std::size_t at = bytes_;
  bytes_ += before + padded(bytes);
  if (!fits()) return nullptr;
  std::byte* const place = to_.data() + at;
  std::memcpy(place, &head, sizeof head);
  std::memcpy(place + padded(sizeof head), path.data(), path.size());
  return place + before;
}

void OwnStateWriter::add_bytes(const Head& head, const std::string& path, std::span<const std::byte> bytes) {
  std::byte* const to = add(head, path, bytes.size());
  if (to && !bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
}

void OwnStateWriter::on_tensor(const std::string& path, at::Tensor value) {
  const at::NoGradGuard no_grad;
  const auto sizes = value.sizes();
  const std::size_t before = padded(sizes.size() * sizeof(std::int64_t));
  const Head head{Head::kTensor, value.scalar_type(), static_cast<std::uint16_t>(sizes.size()),
                  static_cast<std::uint32_t>(path.size()), value.nbytes()};
  std::byte* const to = add(head, path, before + value.nbytes());
  if (!to) return;
  std::memcpy(to, sizes.data(), sizes.size() * sizeof(std::int64_t));
  if (value.numel() == 0) return;
  if (value.is_contiguous() && value.is_cpu()) {
    std::memcpy(to + before, value.const_data_ptr(), value.nbytes());
  } else {
    at::from_blob(to + before, sizes, value.options().device(at::kCPU)).copy_(value);
  }
}

void OwnStateWriter::on_number(const std::string& path, std::int64_t& value) {
  const Head head{.kind = Head::kNumber, .path_bytes = static_cast<std::uint32_t>(path.size()), .bytes = sizeof value};
  add_bytes(head, path, std::as_bytes(std::span(&value, 1)));
}

void OwnStateWriter::on_real(const std::string& path, double& value) {
  const Head head{.kind = Head::kReal, .path_bytes = static_cast<std::uint32_t>(path.size()), .bytes = sizeof value};
  add_bytes(head, path, std::as_bytes(std::span(&value, 1)));
}

void OwnStateWriter::on_reals(const std::string& path, std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  const Head head{.kind = Head::kReals, .path_bytes = static_cast<std::uint32_t>(path.size()), .bytes = bytes.size()};
  add_bytes(head, path, bytes);
}

void OwnStateWriter::on_text(const std::string& path, std::string& value) {
  const Head head{.kind = Head::kText, .path_bytes = static_cast<std::uint32_t>(path.size()), .bytes = value.size()};
  add_bytes(head, path, std::as_bytes(std::span(value)));
}

void visit_own_state(std::span<const std::byte> record, StateVisitor& visitor) {
  using Head = OwnStateWriter::Head;
  const auto value_at = [](const std::byte* from, auto value) {
    std::memcpy(&value, from, sizeof value);
    return value;
  };
  for (const std::byte* at = record.data(); at != record.data() + record.size();) {
    const auto head = value_at(at, Head{});
    const std::string_view path{reinterpret_cast<const char*>(at + padded(sizeof head)), head.path_bytes};
    const std::byte* data = at + padded(sizeof head) + padded(head.path_bytes);
    const std::byte* const values =
        data + (head.kind == Head::kTensor ? padded(head.dimensions * sizeof(std::int64_t)) : 0);
    switch (head.kind) {
      case Head::kTensor: {
        const at::IntArrayRef sizes(reinterpret_cast<const std::int64_t*>(data), head.dimensions);
        visitor.tensor(path, at::from_blob(const_cast<std::byte*>(values), sizes, at::TensorOptions(head.type)));
        break;
      }
      case Head::kNumber: {
        auto value = value_at(values, std::int64_t{});
        visitor.number(path, value);
        break;
      }
      case Head::kReal: {
        auto value = value_at(values, double{});
        visitor.real(path, value);
        break;
      }
      case Head::kReals: {
        std::vector<float> reals(head.bytes / sizeof(float));
        if (!reals.empty()) std::memcpy(reals.data(), values, head.bytes);
        visitor.reals(path, reals);
        break;
      }
      case Head::kText: {
        std::string text(reinterpret_cast<const char*>(values), head.bytes);
        visitor.text(path, text);
        break;
      }
    }
    at = values + padded(head.bytes);
  }
}

}  // namespace dtrain::train
