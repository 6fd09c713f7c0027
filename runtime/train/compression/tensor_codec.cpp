#include "compression/tensor_codec.h"

#include <type_traits>

#include "dtrain/base/error.h"

namespace dtrain::train {

std::vector<at::Tensor> TensorCodec::state_memory() {
  std::vector<at::Tensor> memory;
  for (const auto& [name, values] : state()) memory.push_back(values);
  return memory;
}

std::vector<at::Tensor> TensorCodecContext::like_flats() const {
  std::vector<at::Tensor> like;
  for (std::size_t g = 0; g < flats.size(); ++g)
    like.push_back(holds_float32(g) ? at::zeros_like(flats[g]) : at::Tensor());
  return like;
}

std::vector<at::Tensor> TensorCodecContext::parts_of(const std::vector<at::Tensor>& like) const {
  std::vector<at::Tensor> parts;
  for (const TensorPlace& place : places) {
    const at::Tensor& flat = like[place.group];
    parts.push_back(flat.defined() ? flat.narrow(0, place.begin, place.elements) : at::Tensor());
  }
  return parts;
}

comm::Work TensorCodecContext::gather(const at::Tensor& rows, int bucket) const {
  const at::Tensor own = rows.select(0, rank());
  return communicator.all_gather(own.data_ptr(), rows.data_ptr(), own.nbytes(), comm::DataType::kUint8, bucket);
}

std::vector<std::pair<std::string, at::Tensor>> error_feedback(const TensorCodecContext& context,
                                                               const std::vector<at::Tensor>& parts) {
  std::vector<std::pair<std::string, at::Tensor>> state;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].defined()) state.emplace_back("error/" + context.places[i].name, parts[i]);
  }
  return state;
}

std::vector<at::Tensor> defined_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> defined;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) defined.push_back(tensor);
  }
  return defined;
}

void give_back(const TensorCodecContext& context, std::size_t place, const std::vector<at::Tensor>& parts) {
  if (!parts[place].defined()) return;
  const TensorPlace& of = context.places[place];
  const at::Tensor values = context.flats[of.group].narrow(0, of.begin, of.elements);
  parts[place].add_(values);
  values.zero_();
}

std::unique_ptr<TensorCodec> make_tensor_codec(TensorCodecContext& context, const comm::Compression& compression) {
  return std::visit(
      [&](const auto& settings) -> std::unique_ptr<TensorCodec> {
        using Settings = std::decay_t<decltype(settings)>;
        if constexpr (std::is_same_v<Settings, comm::NoCompression>) {
          return nullptr;
        } else if constexpr (requires { make_tensor_form(context, settings); }) {
          return make_tensor_form(context, settings);
        } else {
          throw ConfigError(std::string(Settings::kWord) + " is not supported on GPUs yet",
                            "use fp16, bf16, int8, powersgd or topk there");
        }
      },
      compression);
}

}  // namespace dtrain::train
