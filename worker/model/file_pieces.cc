#include "worker/model/file_pieces.h"

#include <glog/logging.h>

#include <algorithm>

namespace stemma::worker {

std::vector<FilePiece> FilePieces(const HfTensor& tensor, const safetensors::TensorEntry& entry,
                                  const ParameterRanges& owned) {
  const auto range = std::lower_bound(owned.begin(), owned.end(), tensor.parameter,
                                      [](const ParameterRange& r, int parameter) { return r.parameter < parameter; });
  if (range == owned.end() || range->parameter != tensor.parameter) return {};
  const TensorBox& box = tensor.box;
  const int64_t columns = entry.shape.size() > 1 ? entry.shape[1] : 1, width = box.columns();
  CHECK(box.row_end <= entry.shape.at(0) && box.column_end <= columns) << tensor.name;
  const int64_t first = tensor.row_begin * width;  // of the box, in the parameter
  const int64_t begin = std::max(range->begin - first, int64_t{0});
  const int64_t end = std::min(range->end() - first, box.rows() * width);
  // Rows that are whole follow one another in the file: the box is one run.
  const int64_t run = width == columns ? box.rows() * width : width;
  const auto element_bytes = static_cast<uint64_t>(safetensors::DtypeBytes(entry.dtype));
  std::vector<FilePiece> pieces;
  for (int64_t at = begin; at < end;) {
    const int64_t length = std::min(run - at % run, end - at);
    const int64_t runs = length == run ? (end - at) / run : 1;
    const int64_t place = (box.row_begin + at / width) * columns + box.column_begin + at % width;
    pieces.push_back({.parameter = tensor.parameter,
                      .begin = first + at,
                      .count = length * runs,
                      .bytes = {.begin = entry.begin + static_cast<uint64_t>(place) * element_bytes,
                                .length = static_cast<uint64_t>(length) * element_bytes,
                                .runs = static_cast<uint64_t>(runs),
                                .stride = static_cast<uint64_t>(columns) * element_bytes}});
    at += length * runs;
  }
  return pieces;
}

}  // namespace stemma::worker
