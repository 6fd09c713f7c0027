// context.log_image() and log_histogram(): convert tensors to TensorBoard's pictures and histograms.
#include <cmath>
#include <cstring>
#include <sstream>
#include <utility>

#include <ATen/ATen.h>

#include "dtrain/base/error.h"
#include "dtrain/profile/event_file.h"
#include "dtrain/rank/rank_session.h"
#include "dtrain/train/trial.h"

namespace dtrain {
namespace {

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
