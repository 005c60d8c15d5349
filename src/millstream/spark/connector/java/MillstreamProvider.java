package millstream.spark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The name "millstream" in Java: Spark's adapter of Python sources, with queries that reach the source.
 *
 * <p>Spark tells a Python source neither the columns of a query nor its conditions and aggregates, and
 * starts a Python process to plan each read. This class changes only the planning of batch reads. Writes,
 * streams, and every request that the planner refuses take the way of Spark's own adapter.
 */
public final class MillstreamProvider extends PythonDataSourceV2 implements DataSourceRegister {
  private static final String NAME = "millstream";
  private boolean isNamed;

  @Override
  public String shortName() {
    return NAME;
  }

  @Override
  public void setShortName(String name) {
    if (!isNamed) {
      isNamed = true;
      super.setShortName(NAME);
    }
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    setShortName(NAME);
    try {
      String schema = Planner.of(source()).schema(options);
      return (StructType) DataType.fromJson(schema);
    } catch (Planner.Refused refused) {
      return super.inferSchema(options); // raises the error of the source, as Spark words it
    }
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    setShortName(NAME);
    return new MillstreamTable(this, NAME, schema);
  }
}
