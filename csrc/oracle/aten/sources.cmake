# One adapter file a family, all listed. A file that is not there yet is left out.
set(ORACLE_ATEN_SOURCES
  activations.cpp
  adapter.cpp
  angles.cpp
  attention.cpp
  attention_flash.cpp
  attention_mem.cpp
  autocast.cpp
  batch_norm.cpp
  choices.cpp
  composites.cpp
  copy.cpp
  factory.cpp
  foreach.cpp
  gemm.cpp
  group_norm.cpp
  indexing.cpp
  iterator.cpp
  loss.cpp
  maps.cpp
  missing_op.cpp
  moves.cpp
  norm.cpp
  optimizer.cpp
  pointwise.cpp
  pool.cpp
  races.cpp
  random.cpp
  reduce.cpp
  resample.cpp
  searches.cpp
  softmax.cpp
  stubs.cpp
  transfer.cpp
  views.cpp
)
foreach(source IN LISTS ORACLE_ATEN_SOURCES)
  if(NOT EXISTS ${CMAKE_CURRENT_LIST_DIR}/${source})
    list(REMOVE_ITEM ORACLE_ATEN_SOURCES ${source})
  endif()
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR})
