package millstream.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Arrays;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceReadInfo;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A read of some columns of some records, planned by the planner when Spark runs it. */
final class MillstreamScan implements Scan {
  private final MillstreamTable table;
  private final StructType columns;
  private final CaseInsensitiveStringMap options;
  private final ObjectNode request;
  private final Conditions conditions;

  MillstreamScan(
      MillstreamTable table,
      StructType columns,
      CaseInsensitiveStringMap options,
      ObjectNode request,
      Conditions conditions) {
    this.table = table;
    this.columns = columns;
    this.options = options;
    this.request = request;
    this.conditions = conditions;
  }

  @Override
  public StructType readSchema() {
    return columns;
  }

  @Override
  public String description() {
    return "millstream columns="
        + Arrays.toString(columns.fieldNames())
        + " conditions="
        + Arrays.toString(conditions.exact());
  }

  @Override
  public CustomMetric[] supportedCustomMetrics() {
    return table.source().createPythonMetrics();
  }

  @Override
  public Batch toBatch() {
    PythonDataSourceV2 reader = reader();
    try {
      PythonDataSourceReadInfo info = Planner.of(table.source()).plan(request, table);
      reader.setReadInfo(info);
      return ColumnarReaders.of(
          scan(reader, columns).toBatch(), table.source(), info, columns);
    } catch (Planner.Refused refused) {
      // Spark's planning of all columns raises what is wrong with the read, as Spark words it.
      scan(reader(), table.schema()).toBatch().planInputPartitions();
      if (conditions.exact().length > 0 || table.snapshot(request) != null) {
        // Spark's adapter knows neither conditions nor the bounds of earlier queries.
        throw new IllegalStateException("the planner of millstream failed: " + refused.getMessage());
      }
    }
    return scan(reader, noted(columns)).toBatch();
  }

  /** Return the columns with what the first column of a table of SQL notes: the table's options. */
  private StructType noted(StructType chosen) {
    StructField[] fields = chosen.fields().clone();
    StructField first = fields[0];
    fields[0] =
        new StructField(
            first.name(), first.dataType(), first.nullable(), table.schema().apply(0).metadata());
    return new StructType(fields);
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    return table.pythonScanBuilder(options).build().toMicroBatchStream(checkpoint);
  }

  private static PythonDataSourceV2 reader() {
    PythonDataSourceV2 reader = new PythonDataSourceV2();
    reader.setShortName("millstream");
    return reader;
  }

  private Scan scan(PythonDataSourceV2 reader, StructType asked) {
    return new PythonTable(reader, "millstream", asked).newScanBuilder(options).build();
  }
}
