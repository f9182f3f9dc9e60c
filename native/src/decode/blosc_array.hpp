// Frames that hold an array of several dimensions (blosc's b2nd): blocks are boxes, padded to one size.
#pragma once

#include "blosc_frame.hpp"

namespace solar::blosc {

// Decodes the array whose shape `metalayer` tells, in C order: the blocks of which anything is wanted, or all without
// `wanted`. Returns the bytes of the whole array.
std::size_t decode_array(Frame& frame, Bytes metalayer, MutableBytes out, Scratch& scratch, Wanted* wanted);

}  // namespace solar::blosc
