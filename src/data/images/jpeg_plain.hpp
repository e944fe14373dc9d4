// SPDX-License-Identifier: Apache-2.0
// Repairs faults that libjpeg-turbo warns of although no pixel is lost.
#pragma once

#include <cstddef>
#include <string>

#include "data/array.hpp"

namespace data {

struct PlainJpeg {
  Bytes bytes;
  // True if one sequential scan holds all components. Such a file is cut at the end of the scan's
  // data, and has an end marker there.
  bool one_scan = false;
  // True if the file lacks its end marker and its data ends with many zeros. A copy that was cut
  // and filled up looks like this, and zeros decode without a warning.
  bool zeros = false;
  // Why a file that lacks its end marker may lack pixels as well, without a warning; "" otherwise.
  std::string lacks;
  bool ended = false;  // an end marker was added to several scans
};

// Returns the file without these faults, which cost no pixel:
//   - bytes between the segments of the header,
//   - a JFIF version other than 1,
//   - an Adobe colour transform that the library does not know; it uses the usual one, as here,
//   - parameters of a progressive scan in a sequential file, which have no meaning there,
//   - what follows the data of a single scan, with or without an end marker: trailers of cameras
//     and phones. `extra` more bytes are cut off the end of that data,
//   - several scans, of all coefficients to the last bit, without an end marker behind them.
PlainJpeg plain_jpeg(const Bytes& file, size_t extra);

}  // namespace data
