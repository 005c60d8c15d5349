package millstream.spark;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * What a DataFrame or a view reads.
 *
 * <p>Its first query notes how far each log goes; all later ones read the same records. Spark may share
 * one table between uses with different options, so each set of options has a note of its own.
 */
final class MillstreamTable extends PythonTable {
  private final PythonDataSourceV2 provider;
  private final Map<JsonNode, String> snapshots = new HashMap<>();

  MillstreamTable(PythonDataSourceV2 provider, String name, StructType schema) {
    super(provider, name, schema);
    this.provider = provider;
  }

  UserDefinedPythonDataSource source() {
    return provider.source();
  }

  /** The bounds that the first query with the options of this request noted; null before it. */
  synchronized String snapshot(JsonNode request) {
    return snapshots.get(request.get("options"));
  }

  synchronized void note(JsonNode request, String bounds) {
    snapshots.putIfAbsent(request.get("options"), bounds);
  }

  /** The way of Spark's adapter: streams, and reads that the planner refuses. */
  ScanBuilder pythonScanBuilder(CaseInsensitiveStringMap options) {
    return super.newScanBuilder(options);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return new MillstreamScanBuilder(this, options);
  }
}
